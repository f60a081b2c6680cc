//! Approvals and conversations without a web framework.

use futures_util::stream;
use ui_message_stream::{AgentEvent, BoxError};
use ui_message_stream::approval::{Approvals, EmptyToolbox};
use ui_message_stream::chat::{ChatServer, Turn};

fn main() {
    let respond = |_: Turn| stream::iter([Ok::<_, BoxError>(AgentEvent::text("Hello"))]);
    println!("{:?}", ChatServer::new(respond, Approvals::new(EmptyToolbox)));
}
