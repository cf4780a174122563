//! Everything a runner written in Rust needs: a server that speaks the runner API, and a client
//! for the host API. Write a [`Runner`], hand it to [`router`], and [`serve`] it.

pub mod runner; // start here: what an author writes

pub mod results;
pub mod stream;

pub mod host;

pub mod server;
pub mod signature;

pub mod testing;

mod clock;
mod frame;

pub use host::{Host, HostClient, HostError};
pub use runner::{ResultStream, Run, RunError, Runner};
pub use server::serve::serve;
pub use server::{Options, router, router_with};
pub use signature::{SignatureError, SigningSecret};
pub use stream::{Results, stream};
pub use tokio_util::sync::CancellationToken;
