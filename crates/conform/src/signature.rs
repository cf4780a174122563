//! Checks that requests without a valid Standard Webhooks signature are refused.

use std::fmt::Display;

use domain::manifest::AcceptedManifest;
use http::StatusCode;
use secrecy::SecretString;
use tokio::time::Instant;

use super::kit::{Kit, Signing};
use super::report::{Book, Check};
use super::trace;
use runner_client::signature::SigningSecret;

const UNSIGNED: Check = Check {
    id: "signature.refuses_unsigned",
    expected: "a run without webhook-signature is refused with 4xx",
    advice: "verify each request with a library of standardwebhooks.com before you look at its body",
};
const UNSIGNED_LIST: Check = Check {
    id: "signature.refuses_unsigned_list",
    expected: "a list call without webhook-signature is refused with 4xx",
    advice: "verify list calls as well, unless the list is public",
};
const WRONG_SECRET: Check = Check {
    id: "signature.refuses_wrong_secret",
    expected: "a run signed with another secret is refused with 4xx",
    advice: "compare the HMAC, in constant time; do not only look whether a signature is there",
};
const TAMPERED: Check = Check {
    id: "signature.refuses_tampered_body",
    expected: "a run whose body is not the signed one is refused with 4xx",
    advice: "sign the bytes as they came, before they are parsed: {webhook-id}.{webhook-timestamp}.{body}",
};
const STALE: Check = Check {
    id: "signature.refuses_old_timestamp",
    expected: "a run that was rightly signed an hour ago is refused with 4xx",
    advice: "refuse a webhook-timestamp that is more than five minutes away",
};
const FUTURE: Check = Check {
    id: "signature.refuses_future_timestamp",
    expected: "a run that is signed for in an hour is refused with 4xx",
    advice: "refuse a webhook-timestamp that is more than five minutes away, in both directions",
};
const ONCE: Check = Check {
    id: "signature.runs_an_id_once",
    expected: "the same webhook-id a second time is refused with 4xx",
    advice: "remember each webhook-id for ten minutes and refuse it the second time; the gateway \
             never repeats one, so whoever does has overheard it",
};

pub(super) const ALL: [&Check; 7] = [
    &UNSIGNED,
    &UNSIGNED_LIST,
    &WRONG_SECRET,
    &TAMPERED,
    &STALE,
    &FUTURE,
    &ONCE,
];
const HOUR: i64 = 3600;

/// Sends requests with invalid signatures.
pub(super) async fn check(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let other = SigningSecret::parse(&SecretString::from(SigningSecret::generate()));
    let other = other.expect("a secret that was made is one");
    for (check, signing) in [
        (&UNSIGNED, Signing::Missing),
        (&WRONG_SECRET, Signing::With(&other)),
        (&TAMPERED, Signing::OfAnotherBody),
        (&STALE, Signing::Off(-HOUR)),
    ] {
        match run(kit, runner, &signing).await {
            Ok(status) if status.is_client_error() => book.pass(check, http(status)),
            Ok(status) => book.fail(check, http(status)),
            Err(error) => book.fail(check, format!("no answer: {error}")),
        }
    }
    let list = kit.options.endpoint.list_call();
    check_wish(
        &UNSIGNED_LIST,
        kit.status(&list, &Signing::Missing).await,
        book,
    );
    check_wish(&FUTURE, run(kit, runner, &Signing::Off(HOUR)).await, book);
    check_once(kit, runner, book).await;
}

fn check_wish<E: Display>(
    check: &'static Check,
    answer: Result<StatusCode, E>,
    book: &mut Book<'_>,
) {
    match answer {
        Ok(status) if status.is_client_error() => book.pass(check, http(status)),
        Ok(status) => book.warn(check, http(status)),
        Err(error) => book.warn(check, format!("no answer: {error}")),
    }
}

async fn run(
    kit: &Kit,
    runner: &AcceptedManifest,
    signing: &Signing<'_>,
) -> Result<StatusCode, String> {
    let opened = kit.open(runner, &kit.message(&kit.options.text));
    let status = kit.status(&opened.call, signing).await;
    kit.host.cut(&opened.token);
    status
}

/// The token stays valid, so that callbacks of a second execution are not calls after the end.
async fn check_once(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let mut opened = kit.open(runner, &kit.message(&kit.options.text));
    opened.lasting = true;
    let until = Instant::now() + kit.options.timeout;
    let posted = kit.post(&opened).await;
    let is_taken = posted.is_taken();
    trace::read(kit, &opened, posted, until).await;
    if is_taken {
        check_wish(&ONCE, kit.status(&opened.call, &Signing::Right).await, book);
    } else {
        book.skip(&ONCE, "the first run was not taken");
    }
    kit.host.cut(&opened.token);
}

fn http(status: StatusCode) -> String {
    format!("HTTP {}", status.as_u16())
}
