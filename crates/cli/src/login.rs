//! `runnel login` and `runnel logout`: a session by the device flow of the gateway's `OpenID` provider (RFC 8628).

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use egress::{AllowRule, Egress};
use http::Method;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use url::Url;

use crate::facts::{moment, text};
use crate::gateway::{GatewayArguments, read_json};
use crate::output::{self, OutputFormat};
use crate::session_file::SessionFile;

/// Grant type of the device flow.
const DEVICE_CODE: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Time between two polls, if the provider names none, and its growth with each `slow_down`.
const POLL_SECONDS: u64 = 5;
/// Maximum time between two polls.
const MAX_POLL_SECONDS: u64 = 60;
/// Maximum time for the person.
const MAX_SECONDS: u64 = 1800;

/// Arguments of `runnel login`.
#[derive(clap::Args)]
pub struct LoginArguments {
    /// The gateway. Default: the variable `RUNNEL_URL`.
    #[arg(long)]
    url: Option<String>,
}

/// Signs a person in, and stores the session for later commands.
pub(super) async fn login(
    arguments: LoginArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let Some(gateway) = GatewayArguments::to_sign_in(arguments.url)? else {
        return Ok(ExitCode::from(2));
    };
    let settings = gateway.get("/v1/sign-in").await?;
    let flow = DeviceFlow::of(&settings)?;
    let device = flow.begin().await?;
    // With the code in its address, the person only confirms.
    let page = device["verification_uri_complete"].as_str();
    let page = page.unwrap_or_else(|| text(&device, "verification_uri"));
    output::remark(&format!(
        "open {page} and enter {}",
        text(&device, "user_code")
    ));
    let token = flow.wait(&device).await?;
    let request = gateway.request(Method::POST, "/v1/sessions")?;
    let bearer = format!("Bearer {}", token.expose_secret());
    let session = gateway.ask(request.header(AUTHORIZATION, bearer)).await?;
    let file = SessionFile {
        url: gateway.base().to_owned(),
        api_key: text(&session, "key").to_owned(),
        expires_at: session["expires_at"]
            .as_i64()
            .context("the session has no expiry")?,
    };
    // Before the output, which promises it.
    file.write()?;
    if format.is_json() {
        let shown = json!({"url": file.url, "id": session["id"], "name": session["name"], "role": session["role"],
            "expires_at": session["expires_at"]});
        output::document(&shown);
    } else {
        let until = moment(&session, "expires_at").unwrap_or_default();
        output::line(&format!(
            "signed in at {} as {}, role {}, until {until}",
            file.url,
            text(&session, "name"),
            text(&session, "role")
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Deletes the stored session.
pub(super) fn logout() -> anyhow::Result<ExitCode> {
    output::line(if SessionFile::delete()? {
        "the session is deleted here; an admin also ends it with DELETE /v1/api-keys/{id}"
    } else {
        "no session is stored"
    });
    Ok(ExitCode::SUCCESS)
}

/// The provider's endpoints, and an HTTP client for them alone.
struct DeviceFlow {
    egress: Egress,
    client_id: String,
    scope: String,
    authorization: Url,
    token: Url,
}

impl DeviceFlow {
    fn of(settings: &Value) -> anyhow::Result<Self> {
        let endpoint = |name: &str| -> anyhow::Result<Url> {
            let url = settings[name].as_str();
            let url = url.context("the gateway's provider has no device flow; use an API key")?;
            url.parse()
                .with_context(|| format!("{name} of the provider is no URL"))
        };
        let client_id = settings["client_id"].as_str();
        let client_id =
            client_id.context("the gateway has no auth.oidc.client_id; use an API key")?;
        let authorization = endpoint("device_authorization_endpoint")?;
        let token = endpoint("token_endpoint")?;
        let allow = [&authorization, &token].map(|url| -> anyhow::Result<AllowRule> {
            let host = url
                .host_str()
                .context("an endpoint of the provider names no host")?;
            let port = url
                .port_or_known_default()
                .context("an endpoint of the provider names no port")?;
            Ok(format!("{host}:{port}").parse()?)
        });
        let allow = allow.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self {
            egress: Egress::new(allow, Duration::from_secs(10))?,
            client_id: client_id.to_owned(),
            scope: text(settings, "scope").to_owned(),
            authorization,
            token,
        })
    }

    async fn begin(&self) -> anyhow::Result<Value> {
        let form = [
            ("client_id", self.client_id.as_str()),
            ("scope", &self.scope),
        ];
        let device = self.post(&self.authorization, &form).await?;
        if !device["device_code"].is_string() {
            bail!("the provider refused the sign-in: {}", reason(&device));
        }
        Ok(device)
    }

    /// Polls until the person has signed in.
    async fn wait(&self, device: &Value) -> anyhow::Result<SecretString> {
        let lifetime = device["expires_in"]
            .as_u64()
            .unwrap_or(MAX_SECONDS)
            .min(MAX_SECONDS);
        let deadline = Instant::now() + Duration::from_secs(lifetime);
        let mut interval = device["interval"].as_u64().unwrap_or(POLL_SECONDS);
        let form = [
            ("grant_type", DEVICE_CODE),
            ("device_code", text(device, "device_code")),
            ("client_id", &self.client_id),
        ];
        while Instant::now() < deadline {
            tokio::time::sleep(Duration::from_secs(interval.clamp(1, MAX_POLL_SECONDS))).await;
            let answer = self.post(&self.token, &form).await?;
            // The access token may be opaque; the ID token is always signed.
            if let Some(token) = answer["id_token"].as_str() {
                return Ok(SecretString::from(token.to_owned()));
            }
            match answer["error"].as_str() {
                Some("authorization_pending") => {}
                // RFC 8628, section 3.5.
                Some("slow_down") => interval += POLL_SECONDS,
                _ => bail!("the provider refused the sign-in: {}", reason(&answer)),
            }
        }
        bail!("the sign-in was not completed in time; run `runnel login` again")
    }

    async fn post(&self, url: &Url, form: &[(&str, &str)]) -> anyhow::Result<Value> {
        let request = self.egress.request(Method::POST, url)?;
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let sent = self.egress.send(request.body(body)).await;
        let response = sent.with_context(|| format!("{url} does not respond"))?;
        read_json(response).await
    }
}

/// The error of an answer in the form of OAuth.
fn reason(answer: &Value) -> &str {
    let texts = ["error_description", "error"].iter();
    let mut texts = texts.filter_map(|name| answer[*name].as_str());
    texts.next().unwrap_or("it gave no reason")
}
