//! The listener of `record` and `replay`.

use std::io::ErrorKind;

use tokio::net::TcpListener;

use crate::CliError;

/// Listens on a port of 127.0.0.1.
///
/// # Errors
/// The error names the address, and the option `--port` if another program uses the port.
pub(crate) async fn listen(port: u16) -> Result<TcpListener, CliError> {
    TcpListener::bind(("127.0.0.1", port)).await.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => "; `--port` takes another port",
            _ => "",
        };
        format!("127.0.0.1:{port}: {error}{hint}").into()
    })
}
