//! Approvals without a web framework and without a chat server.

use ui_message_stream::approval::{Approvals, EmptyToolbox};

fn main() {
    println!("{:?}", Approvals::new(EmptyToolbox));
}
