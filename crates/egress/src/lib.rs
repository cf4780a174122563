//! Guarded HTTP client of gateway and connectors, with its configuration types, and the limiter of concurrent use.
//!
//! A request is checked three times: its URL, every address that its name resolves to, and the peer address of
//! the connection.

mod address;
mod allow_rule;
pub mod discovery;
mod header_name;
pub mod limiter;
mod own;
mod plain_url;
mod policy;
pub mod rate;
mod read;
pub mod redact;
mod resolver;
pub mod tokens;
mod tool_url;
pub mod upstream;

use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy as RedirectPolicy;
use reqwest::{Client, Method};
use url::Url;

use own::OwnAddress;
use policy::Policy;
use resolver::{GuardedResolver, Lookup};

pub use allow_rule::{AllowRule, AllowRuleError};
pub use header_name::{HeaderNameError, outgoing_header_name};
pub use plain_url::{PlainUrlError, check_parsed_url, parse_plain_url};
pub use policy::Refusal;
pub use read::read_up_to;
pub use reqwest::{Body, RequestBuilder, Response};
pub use tool_url::{FillError, UrlTemplate, UrlTemplateError};

const USER_AGENT: &str = concat!("runnel/", env!("CARGO_PKG_VERSION"));
// Idle connections close after this time, sooner than most servers close theirs (five seconds or more): a
// request that crosses the server's close is lost, and a run's POST is not repeated. Each new connection
// resolves and checks its name again. A connection in use keeps its checked address.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
const MAX_IDLE_PER_HOST: usize = 256;

/// Cause of a request without a response. Contains no URL, because URLs may hold secrets.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// Not sent, or the response was discarded.
    #[error("the request is not allowed: {reason}")]
    Blocked { reason: Refusal },
    /// Name resolution, connection or TLS failed: nothing was sent.
    #[error("could not connect")]
    Connect(#[source] ExchangeCause),
    /// The caller's timeout expired.
    #[error("no response in time")]
    Timeout,
    /// The connection broke, or the response was not HTTP.
    #[error("the exchange failed")]
    Io(#[source] ExchangeCause),
}

/// Innermost cause of a failed exchange. The layers between repeat each other.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ExchangeCause {
    text: String,
    pub kind: Option<ErrorKind>,
}

impl ExchangeCause {
    fn of(error: &reqwest::Error) -> Self {
        let first: &(dyn Error + 'static) = error;
        let causes = || std::iter::successors(Some(first), |cause| (*cause).source());
        let kind = causes()
            .find_map(|cause| cause.downcast_ref::<std::io::Error>())
            .map(std::io::Error::kind);
        // reqwest's own timeouts have no `io::Error` among their causes.
        let kind = match kind {
            None if error.is_timeout() => Some(ErrorKind::TimedOut),
            kind => kind,
        };
        let text = match kind {
            Some(ErrorKind::ConnectionRefused) => "connection refused".to_owned(),
            Some(ErrorKind::ConnectionReset) => "connection reset".to_owned(),
            Some(ErrorKind::TimedOut) => "no answer in time".to_owned(),
            _ => causes().last().map(ToString::to_string).unwrap_or_default(),
        };
        Self { text, kind }
    }
}

impl EgressError {
    /// The error and its cause as one text.
    pub fn in_words(&self) -> String {
        match self {
            Self::Connect(cause) | Self::Io(cause) => format!("{self}: {cause}"),
            Self::Blocked { .. } | Self::Timeout => self.to_string(),
        }
    }

    /// True when no process listens at the address.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(cause) if cause.kind == Some(ErrorKind::ConnectionRefused))
    }

    /// True when no connection was established, so that nothing was sent.
    pub fn is_connect(&self) -> bool {
        matches!(self, Self::Connect(_))
    }
}

impl From<Refusal> for EgressError {
    fn from(reason: Refusal) -> Self {
        Self::Blocked { reason }
    }
}

impl From<reqwest::Error> for EgressError {
    fn from(error: reqwest::Error) -> Self {
        if let Some(reason) = refusal_in(&error) {
            return Self::Blocked { reason };
        }
        // The URL may hold a secret, and this text reaches logs and callers.
        let error = error.without_url();
        if error.is_connect() {
            Self::Connect(ExchangeCause::of(&error))
        } else if error.is_timeout() {
            Self::Timeout
        } else {
            Self::Io(ExchangeCause::of(&error))
        }
    }
}

// The resolver's error is one of the causes.
fn refusal_in(error: &reqwest::Error) -> Option<Refusal> {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    // reqwest wraps the resolver's error in layers of its own.
    while let Some(error) = cause {
        if let Some(refusal) = error.downcast_ref::<Refusal>() {
            return Some(refusal.clone());
        }
        cause = error.source();
    }
    None
}

/// Guarded client: no redirects, proxies, cookies, decompression or total timeout.
#[derive(Clone, Debug)]
pub struct Egress {
    client: Client,
    policy: Arc<Policy>,
    lookup: Lookup,
    own: Vec<OwnAddress>,
    connect_timeout: Duration,
}

impl Egress {
    /// Client for public HTTPS and the targets of `allow`. `connect_timeout` covers name resolution, connection
    /// and TLS; other timeouts are the caller's.
    pub fn new(allow: Vec<AllowRule>, connect_timeout: Duration) -> Result<Self, EgressError> {
        Self::with_lookup(allow, connect_timeout, Lookup::of_the_system())
    }

    fn with_lookup(
        allow: Vec<AllowRule>,
        connect_timeout: Duration,
        lookup: Lookup,
    ) -> Result<Self, EgressError> {
        let policy = Arc::new(Policy::new(allow));
        let resolver = GuardedResolver(Arc::clone(&policy), lookup.clone());
        Ok(Self {
            client: build_client(resolver, connect_timeout)?,
            policy,
            lookup,
            own: Vec::new(),
            connect_timeout,
        })
    }

    /// The same client without open connections, for use after a peer has closed one.
    pub fn with_new_connections(&self) -> Result<Self, EgressError> {
        let resolver = GuardedResolver(Arc::clone(&self.policy), self.lookup.clone());
        Ok(Self {
            client: build_client(resolver, self.connect_timeout)?,
            ..self.clone()
        })
    }

    /// The same client without the rules of `allow`: public HTTPS only.
    pub fn without_rules(&self) -> Result<Self, EgressError> {
        let public = Self::with_lookup(Vec::new(), self.connect_timeout, self.lookup.clone())?;
        Ok(Self {
            own: self.own.clone(),
            ..public
        })
    }

    /// Blocks the process's own listen address regardless of `allow`, so that the gateway cannot call itself. May be
    /// called several times. An unspecified address covers every address of the machine.
    #[must_use]
    pub fn refusing_own(mut self, listen: SocketAddr) -> Self {
        self.own.push(OwnAddress(listen));
        self
    }

    /// Checks a URL at registration. Names are not resolved yet.
    pub fn check_url(&self, raw: &str) -> Result<Url, EgressError> {
        let url = self.policy.check_text(raw)?;
        self.check_own_address(&url)?;
        Ok(url)
    }

    /// True when a rule of `egress.allow` matches this URL.
    pub fn is_opened(&self, url: &Url) -> bool {
        self.policy.is_opened(url)
    }

    /// True when a URL needs a further rule of `egress.allow`, because of its scheme, port or current address.
    pub async fn needs_rule(&self, url: &Url) -> bool {
        if self.policy.check_url(url).is_err() {
            return true;
        }
        let Some(name) = url.domain() else {
            return false;
        };
        let lookup = tokio::time::timeout(self.connect_timeout, self.lookup.addresses(name)).await;
        // An unresolvable name fails later, at the connection.
        let addresses = lookup.ok().and_then(Result::ok).unwrap_or_default();
        self.policy.check_resolved(name, &addresses).is_err()
    }

    /// Starts a request if the URL is allowed.
    pub fn request(&self, method: Method, url: &Url) -> Result<RequestBuilder, EgressError> {
        self.policy.check_url(url)?;
        self.check_own_address(url)?;
        Ok(self.client.request(method, url.clone()))
    }

    /// Sends a request of [`Egress::request`]. The response comes from an allowed address; its body is unread.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, EgressError> {
        let request = request.build()?;
        // Checked before anything is sent: after the response, the gateway would have called itself already.
        self.check_own_name(request.url()).await?;
        let response = self.client.execute(request).await?;
        // A name may resolve differently at the dial (DNS rebinding), so the connected address is checked as well.
        let peer = response.remote_addr();
        self.policy.check_peer(response.url(), peer)?;
        match peer {
            Some(peer) if self.is_own(peer) => Err(Refusal::Own.into()),
            _ => Ok(response),
        }
    }

    fn is_own(&self, address: SocketAddr) -> bool {
        self.own.iter().any(|own| own.is_at(address))
    }

    fn check_own_address(&self, url: &Url) -> Result<(), Refusal> {
        match policy::literal(url) {
            Some(address) if self.is_own(address) => Err(Refusal::Own),
            _ => Ok(()),
        }
    }

    // The resolver does not know the port, and most names at our port are other machines.
    async fn check_own_name(&self, url: &Url) -> Result<(), EgressError> {
        let (Some(name), Some(port)) = (url.domain(), url.port_or_known_default()) else {
            return Ok(());
        };
        if self.own.iter().all(|own| own.0.port() != port) {
            return Ok(());
        }
        let lookup = tokio::time::timeout(self.connect_timeout, self.lookup.addresses(name));
        let addresses = lookup.await.map_err(|_| EgressError::Timeout)?;
        // An unresolvable name fails later, at the connection.
        let addresses = addresses.unwrap_or_default();
        let is_own = |address: &SocketAddr| self.is_own(SocketAddr::new(address.ip(), port));
        if addresses.iter().any(is_own) {
            return Err(Refusal::Own.into());
        }
        Ok(())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that makes a client"
)]
fn build_client(
    resolver: GuardedResolver,
    connect_timeout: Duration,
) -> Result<Client, reqwest::Error> {
    Client::builder()
        .user_agent(USER_AGENT)
        // A redirect target would skip the checks of the URL.
        .redirect(RedirectPolicy::none())
        .referer(false)
        // A proxy would resolve the name itself, outside of the address checks.
        .no_proxy()
        .dns_resolver(resolver)
        .connect_timeout(connect_timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
        .tcp_nodelay(true)
        // One connection per request: HTTP/2 requests share one and queue invisibly at the server's stream
        // limit.
        .http1_only()
        .build()
}

#[cfg(test)]
mod attacks;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use reqwest::header::LOCATION;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Answers every request with the same bytes (none: no response) and counts requests.
    struct TestServer {
        address: SocketAddr,
        requests: Arc<AtomicUsize>,
        _tasks: JoinSet<()>,
    }

    impl TestServer {
        async fn answering(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let requests = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&requests);
            let mut tasks = JoinSet::new();
            tasks.spawn(async move {
                let mut silent = Vec::new();
                while let Ok((mut stream, _)) = listener.accept().await {
                    let answer = answer(&read_head(&mut stream).await);
                    count.fetch_add(1, Ordering::SeqCst);
                    if answer.is_empty() {
                        silent.push(stream);
                    } else {
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                }
            });
            Self {
                address,
                requests,
                _tasks: tasks,
            }
        }

        fn url(&self) -> Url {
            Url::parse(&format!("http://{}/path?key=hunter2", self.address)).unwrap()
        }

        fn count(&self) -> usize {
            self.requests.load(Ordering::SeqCst)
        }
    }

    async fn read_head(stream: &mut TcpStream) -> String {
        let (mut head, mut buffer) = (String::new(), [0; 1024]);
        while !head.contains("\r\n\r\n") {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => head.push_str(&String::from_utf8_lossy(&buffer[..count])),
            }
        }
        head
    }

    fn ok(body: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn egress(allow: &[&str]) -> Egress {
        let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
        Egress::new(allow, PATIENCE).unwrap()
    }

    fn reason(refused: Result<Response, EgressError>) -> Refusal {
        match refused {
            Err(EgressError::Blocked { reason }) => reason,
            other => panic!("it was not blocked: {other:?}"),
        }
    }

    #[tokio::test]
    async fn requests_send_user_agent_and_few_headers() {
        let server = TestServer::answering(|head| ok(&head.to_lowercase())).await;
        let egress = egress(&[&server.address.to_string()]);
        let request = egress.request(Method::GET, &server.url()).unwrap();

        let head = egress.send(request).await.unwrap().text().await.unwrap();
        assert!(
            head.starts_with("get /path?key=hunter2 http/1.1\r\n"),
            "{head}"
        );
        assert!(head.contains(concat!(
            "user-agent: runnel/",
            env!("CARGO_PKG_VERSION"),
            "\r\n"
        )));
        for header in ["accept-encoding", "cookie", "referer", "proxy-"] {
            assert!(!head.contains(header), "{head}");
        }
    }

    /// Requests on a shared connection would wait for each other.
    #[tokio::test]
    async fn offers_no_http2() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let egress = egress(&[&address.to_string()]);
        let url = Url::parse(&format!("https://{address}/")).unwrap();
        let request = egress.request(Method::GET, &url).unwrap();
        let greeted = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = vec![0; 5];
            stream.read_exact(&mut hello).await.unwrap();
            let rest = u16::from_be_bytes([hello[3], hello[4]]);
            hello.resize(5 + usize::from(rest), 0);
            stream.read_exact(&mut hello[5..]).await.unwrap();
            hello
        };
        let (hello, refused) = tokio::join!(greeted, egress.send(request));
        assert!(refused.is_err());
        // Protocols in the TLS client hello: total length, then each with its own length.
        let only = b"\x00\x09\x08http/1.1";
        assert!(hello.windows(only.len()).any(|part| part == only));
    }

    #[tokio::test]
    async fn no_answer_makes_us_go_elsewhere() {
        let elsewhere = TestServer::answering(|_| ok("")).await;
        for status in ["201", "300", "301", "302", "303", "307", "308"] {
            let location = format!("http://{}/", elsewhere.address);
            let answer = format!(
                "HTTP/1.1 {status} Go\r\nLocation: {location}\r\nRefresh: 0;url={location}\r\n\
                 Content-Length: 0\r\n\r\n"
            );
            let server = TestServer::answering(move |_| answer.clone()).await;
            let egress = egress(&["127.0.0.0/8"]);
            let request = egress.request(Method::POST, &server.url()).unwrap();

            let response = egress.send(request).await.unwrap();
            assert_eq!(response.status().as_str(), status);
            assert_eq!(response.headers()[LOCATION], location);
            assert_eq!(server.count(), 1);
        }
        assert_eq!(elsewhere.count(), 0);
    }

    #[test]
    fn a_proxy_of_the_environment_is_not_taken() {
        // A client with a proxy, also from the environment, would show it.
        assert!(!format!("{:?}", egress(&[])).contains("prox"));
    }

    #[tokio::test]
    async fn rejects_names_with_private_addresses_before_sending() {
        let server = TestServer::answering(|_| ok("")).await;
        let url = format!("http://localhost:{}/", server.address.port());
        let guarded = egress(&[]);

        // The name hides the address from the URL check; only the resolver can reject it.
        assert!(
            guarded
                .request(Method::GET, &Url::parse(&url).unwrap())
                .is_err()
        );
        let refused = guarded.send(guarded.client.get(&url)).await;
        assert_eq!(reason(refused), Refusal::ResolvedAddress);
        assert_eq!(server.count(), 0);

        let opened = egress(&[&format!("localhost:{}", server.address.port())]);
        let request = opened
            .request(Method::GET, &Url::parse(&url).unwrap())
            .unwrap();
        assert_eq!(opened.send(request).await.unwrap().status().as_u16(), 200);
    }

    #[tokio::test]
    async fn checks_literal_addresses_too() {
        let server = TestServer::answering(|_| ok("")).await;
        let egress = egress(&[]);
        let port = server.address.port();
        for host in [
            "127.0.0.1",
            "2130706433",
            "0x7f000001",
            "127.1",
            "[::ffff:127.0.0.1]",
        ] {
            let url = Url::parse(&format!("http://{host}:{port}/")).unwrap();
            let refused = egress.request(Method::GET, &url).unwrap_err();
            assert!(matches!(refused, EgressError::Blocked { .. }), "{host}");
            assert_eq!(server.count(), 0);
        }
        // The response is discarded as well.
        let refused = egress.send(egress.client.get(server.url())).await;
        assert_eq!(reason(refused), Refusal::Peer);
    }

    #[tokio::test]
    async fn errors_tell_if_sent_but_no_url() {
        let silent = TestServer::answering(|_| String::new()).await;
        let broken = TestServer::answering(|_| "nonsense\r\n\r\n".to_owned()).await;
        let closed = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let egress = egress(&["127.0.0.0/8"]);
        let send = async |address: SocketAddr| {
            let url = Url::parse(&format!("http://{address}/?key=hunter2")).unwrap();
            let request = egress.request(Method::GET, &url).unwrap();
            egress
                .send(request.timeout(Duration::from_millis(300)))
                .await
                .unwrap_err()
        };

        let errors = [
            send(closed).await,
            send(silent.address).await,
            send(broken.address).await,
        ];
        assert!(errors[0].is_connect() && !errors[1].is_connect() && !errors[2].is_connect());
        assert!(matches!(errors[1], EgressError::Timeout));
        assert!(matches!(errors[2], EgressError::Io(_)));
        for error in errors {
            assert!(
                !format!("{error} {error:?}").contains("hunter2"),
                "{error:?}"
            );
        }
    }

    #[tokio::test]
    async fn unknown_name_is_a_connect_error() {
        let egress = egress(&[]);
        // A label of this length is rejected without a DNS query.
        let url = Url::parse(&format!("https://{}.invalid/", "a".repeat(64))).unwrap();
        let request = egress.request(Method::GET, &url).unwrap();
        assert!(egress.send(request).await.unwrap_err().is_connect());
    }
}
