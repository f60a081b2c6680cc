//! [`without_authentication`]: all users are one anonymous user.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;

use ::axum::RequestExt;
use ::axum::extract::Request;
use ::axum::extract::connect_info::{ConnectInfo, Connected};
use ::axum::middleware::{FromFn, FromFnLayer, Next, from_fn};
use ::axum::response::{IntoResponse, Response};
use ::axum::serve::IncomingStream;
use tokio::net::TcpListener;
use tower_layer::Layer;

use super::rejection::ChatRejection;
use crate::approval::Principal;

/// Creates a layer that makes every request that of the anonymous user.
///
/// It is for demos and for tools with a single user. All clients share the chats of that user, and
/// each of them can answer all approvals. A warning is logged through `tracing` when the layer is
/// created. A request that already has a [`Principal`] keeps it.
///
/// A request that arrived on an address of this server that is not a loopback address is rejected
/// with status 403, if the server says on which address it arrived: see [`LocalAddress`]. This does
/// not protect a server behind a proxy on the same machine, because the proxy's requests arrive on
/// a loopback address.
///
/// ```no_run
/// use axum::{Router, routing::get};
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream::axum::{LocalAddress, without_authentication};
///
/// # async fn serve() -> std::io::Result<()> {
/// let app: Router = Router::new()
///     .route("/", get(async |user: Principal| user.to_string()))
///     .layer(without_authentication());
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
/// axum::serve(listener, app.into_make_service_with_connect_info::<LocalAddress>()).await
/// # }
/// ```
pub fn without_authentication() -> WithoutAuthentication {
    tracing::warn!(
        "without authentication: every client is the same anonymous user, who can read all of its \
         chats and answer all of its approvals"
    );
    WithoutAuthentication(())
}

/// The layer that [`without_authentication`] creates.
#[derive(Debug, Clone)]
pub struct WithoutAuthentication(());

impl<S> Layer<S> for WithoutAuthentication {
    type Service = FromFn<Handle, (), S, (Request,)>;

    fn layer(&self, inner: S) -> Self::Service {
        let handle: Handle = |request, next| Box::pin(handle(request, next));
        let layer: FromFnLayer<Handle, (), (Request,)> = from_fn(handle);
        layer.layer(inner)
    }
}

type Handle = fn(Request, Next) -> Pin<Box<dyn Future<Output = Response> + Send>>;

async fn handle(mut request: Request, next: Next) -> Response {
    if request.extensions().get::<Principal>().is_none() {
        let told = request.extensions().get::<LocalAddress>().copied();
        let connected = request.extract_parts::<ConnectInfo<LocalAddress>>().await;
        let connected = connected.ok().map(|ConnectInfo(address)| address);
        if [told, connected].into_iter().flatten().any(|address| !address.is_loopback()) {
            return ChatRejection::address_not_allowed().into_response();
        }
        request.extensions_mut().insert(Principal::anonymous());
    }
    next.run(request).await
}

/// The address of this server on which a request arrived. It is not the address of the client.
///
/// [`without_authentication`] reads it from the extensions of a request. `serve` (feature `serve`)
/// inserts it there. `axum::serve` does so if it has a `TcpListener` and the application is served with
/// `into_make_service_with_connect_info::<LocalAddress>()`. With another listener or server, insert
/// a `LocalAddress` into the extensions of each request, for example with the layer
/// `Extension(LocalAddress(address))` if the server listens on one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalAddress(pub SocketAddr);

impl LocalAddress {
    /// Returns whether only programs on this machine can reach this address.
    pub fn is_loopback(&self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for LocalAddress {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        // Without an address the connection counts as one that is not a loopback connection.
        let unknown = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        LocalAddress(stream.io().local_addr().unwrap_or(unknown))
    }
}
