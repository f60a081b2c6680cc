//! The history that a client posts changes the stored one only where the server allows it.

mod edited_while_running;
mod history_completeness;
mod history_import;
mod kept_messages;
