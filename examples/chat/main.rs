//! The main job: a chat whose tools ask a person first. No key, no service, no build step.
//!
//! `cargo run --example chat`, then open the page and ask it to delete a file.

mod agent;
mod model;
mod world;

use std::sync::Arc;

use axum::Router;
use axum::response::{Html, Json};
use axum::routing::get;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use ui_message_stream::approvals::Approvals;
use ui_message_stream::axum::{ChatPolicy, approval_routes, chat_routes};
use ui_message_stream::chat::Chats;

use world::SharedWorld;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let world = Arc::new(SharedWorld::default());
    let chats = Chats::new(agent::of(Arc::clone(&world)), Approvals::new(Arc::clone(&world)));
    let app = Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/api/world", get(async move || Json(world.now())))
        .nest("/api/chat", chat_routes(chats.clone()))
        .nest("/api/approvals", approval_routes(chats))
        // Only pages of this server may look at the world and stop runs, not just those that post.
        .layer(ChatPolicy::default());

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("Open http://{address} and ask it to delete a file. Or, without a browser:");
    println!(
        "curl -N http://{address}/api/chat -H 'content-type: application/json' \
         -d '{{\"id\":\"1\",\"messages\":[{{\"id\":\"1\",\"role\":\"user\",\"parts\":[{{\"type\":\"text\",\"text\":\"weather\"}}]}}]}}'"
    );
    // Without it the last frame of a turn waits 40 ms for the client's acknowledgement.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::warn!(%error, "no TCP_NODELAY");
        }
    });
    axum::serve(listener, app).await?;
    Ok(())
}
