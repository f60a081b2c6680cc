//! Two notifiers of approvals: a mail, and a webhook with a signature. Pass one of them to
//! `Approvals::with_notifier`.

mod mail;
mod webhook;

pub use mail::Mail;
pub use webhook::Webhook;
