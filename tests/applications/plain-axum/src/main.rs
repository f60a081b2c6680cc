//! An axum server without this crate, as the baseline for comparison.

use axum::{Router, routing::post};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let app = Router::new().route("/api/chat", post(async |body: String| body));
    axum::serve(tokio::net::TcpListener::bind("127.0.0.1:3000").await?, app).await
}
