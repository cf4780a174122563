//! The baseline: an HTTP proxy that parses and stores no bodies. It uses the gateway's server and client
//! libraries, with keep-alive connections on both sides.

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri, header};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::stage::announce;

type ProxyClient = Client<HttpConnector, Incoming>;

/// Forwards every request to `upstream`, `host:port`.
pub(crate) async fn serve(upstream: String) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce(&listener)?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: ProxyClient = Client::builder(TokioExecutor::new()).build(connector);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((socket, _)) = accepted else { continue };
                let _ = socket.set_nodelay(true);
                let (client, upstream) = (client.clone(), upstream.clone());
                let service = service_fn(move |request| forward(client.clone(), upstream.clone(), request));
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn forward(
    client: ProxyClient,
    upstream: String,
    mut request: Request<Incoming>,
) -> Result<Response<Incoming>, Error> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let uri = format!("http://{upstream}{path}").parse::<Uri>();
    *request.uri_mut() = uri.expect("a path that came by HTTP is one");
    request.headers_mut().remove(header::HOST);
    let mut response = client.request(request).await?;
    // Hop-by-hop headers.
    response.headers_mut().remove(header::CONNECTION);
    response.headers_mut().remove(header::TRANSFER_ENCODING);
    Ok(response)
}
