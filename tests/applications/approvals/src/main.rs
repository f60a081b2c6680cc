//! Approvals and conversations without a web framework.

use futures_util::stream;
use ui_message_stream::AgentEvent;
use ui_message_stream::approvals::{Approvals, NoTools};
use ui_message_stream::chat::{Chats, Turn};
use ui_message_stream::stream::BoxError;

fn main() {
    let respond = |_: Turn| stream::iter([Ok::<_, BoxError>(AgentEvent::text("Hello"))]);
    println!("{:?}", Chats::new(respond, Approvals::new(NoTools)));
}
