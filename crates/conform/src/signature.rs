//! Checks that requests without a valid Standard Webhooks signature are refused.

use std::fmt::Display;

use domain::manifest::AcceptedManifest;
use http::StatusCode;
use secrecy::SecretString;
use tokio::time::Instant;

use super::check_harness::{CheckHarness, SignatureKind};
use super::recording;
use super::report::{ContractCheck, FindingCollector};
use secrets::signature::SigningSecret;

const UNSIGNED: ContractCheck = ContractCheck {
    id: "signature.refuses_unsigned",
    expected: "a run without webhook-signature is refused with 4xx",
    advice: "verify each request with a library of standardwebhooks.com before you look at its body",
};
const UNSIGNED_LIST: ContractCheck = ContractCheck {
    id: "signature.refuses_unsigned_list",
    expected: "a list call without webhook-signature is refused with 4xx",
    advice: "verify list calls as well, unless the list is public",
};
const WRONG_SECRET: ContractCheck = ContractCheck {
    id: "signature.refuses_wrong_secret",
    expected: "a run signed with another secret is refused with 4xx",
    advice: "compare the HMAC, in constant time; do not only look whether a signature is there",
};
const TAMPERED: ContractCheck = ContractCheck {
    id: "signature.refuses_tampered_body",
    expected: "a run whose body is not the signed one is refused with 4xx",
    advice: "sign the bytes as they came, before they are parsed: {webhook-id}.{webhook-timestamp}.{body}",
};
const STALE: ContractCheck = ContractCheck {
    id: "signature.refuses_old_timestamp",
    expected: "a run that was rightly signed an hour ago is refused with 4xx",
    advice: "refuse a webhook-timestamp that is more than five minutes away",
};
const FUTURE: ContractCheck = ContractCheck {
    id: "signature.refuses_future_timestamp",
    expected: "a run that is signed for in an hour is refused with 4xx",
    advice: "refuse a webhook-timestamp that is more than five minutes away, in both directions",
};
const ONCE: ContractCheck = ContractCheck {
    id: "signature.runs_an_id_once",
    expected: "the same webhook-id a second time is refused with 4xx",
    advice: "remember each webhook-id for ten minutes and refuse it the second time; the gateway \
             never repeats one, so a repetition is a replay by an attacker",
};

pub(super) const ALL: [&ContractCheck; 7] = [
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
pub(super) async fn check(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let other = SigningSecret::parse(&SecretString::from(SigningSecret::generate()));
    let other = other.expect("a secret that was made is one");
    for (check, signing) in [
        (&UNSIGNED, SignatureKind::Missing),
        (&WRONG_SECRET, SignatureKind::With(&other)),
        (&TAMPERED, SignatureKind::OfAnotherBody),
        (&STALE, SignatureKind::Off(-HOUR)),
    ] {
        match run(check_harness, runner, &signing).await {
            Ok(status) if status.is_client_error() => book.pass(check, http(status)),
            Ok(status) => book.fail(check, http(status)),
            Err(error) => book.fail(check, format!("no answer: {error}")),
        }
    }
    let list = check_harness.options.endpoint.list_call();
    check_wish(
        &UNSIGNED_LIST,
        check_harness.status(&list, &SignatureKind::Missing).await,
        book,
    );
    check_wish(
        &FUTURE,
        run(check_harness, runner, &SignatureKind::Off(HOUR)).await,
        book,
    );
    check_once(check_harness, runner, book).await;
}

fn check_wish<E: Display>(
    check: &'static ContractCheck,
    answer: Result<StatusCode, E>,
    book: &mut FindingCollector<'_>,
) {
    match answer {
        Ok(status) if status.is_client_error() => book.pass(check, http(status)),
        Ok(status) => book.warn(check, http(status)),
        Err(error) => book.warn(check, format!("no answer: {error}")),
    }
}

async fn run(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    signing: &SignatureKind<'_>,
) -> Result<StatusCode, String> {
    let opened = check_harness.open(runner, &check_harness.message(&check_harness.options.text));
    let status = check_harness.status(&opened.call, signing).await;
    // The runner may have started the run despite the signature; its callbacks must not be held open.
    check_harness.host.cut(&opened.token);
    status
}

/// The token stays valid, so that callbacks of a second execution are not calls after the end.
async fn check_once(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let mut opened =
        check_harness.open(runner, &check_harness.message(&check_harness.options.text));
    opened.lasting = true;
    let until = Instant::now() + check_harness.options.timeout;
    let posted = check_harness.post(&opened).await;
    let is_taken = posted.is_taken();
    // The first run is finished before the replay, so a busy runner does not refuse for its load.
    recording::read(check_harness, &opened, posted, until).await;
    if is_taken {
        check_wish(
            &ONCE,
            check_harness
                .status(&opened.call, &SignatureKind::Right)
                .await,
            book,
        );
    } else {
        book.skip(&ONCE, "the first run was not taken");
    }
    check_harness.host.cut(&opened.token);
}

fn http(status: StatusCode) -> String {
    format!("HTTP {}", status.as_u16())
}
