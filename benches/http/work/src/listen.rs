//! How the arms in Rust listen.

use axum::Router;
use axum::routing::MethodRouter;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use crate::{Answer, outputs, text};

/// Serves the route of each answer, on the port that is the argument of the program.
///
/// # Errors
/// As [`listen`].
///
/// # Panics
/// If there is no such argument.
pub fn serve(route: fn(&'static Answer) -> MethodRouter) -> std::io::Result<()> {
    let port = std::env::args().nth(1).expect("the argument is PORT");
    let port = port.parse().expect("PORT is a number");
    listen(port, || Router::new().route("/text", route(text())).route("/outputs", route(outputs())))
}

/// Serves these routes on the port of the loopback address until the process ends. Uses one worker thread, and sets
/// `TCP_NODELAY` on each connection.
///
/// # Errors
/// If the runtime cannot start, or the port is in use.
pub fn listen(port: u16, routes: impl FnOnce() -> Router) -> std::io::Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let listener = listener.tap_io(|connection| {
            connection.set_nodelay(true).expect("a connection has this option");
        });
        axum::serve(listener, routes()).await
    })
}
