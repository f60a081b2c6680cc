//! A mail to those who have to decide.

use lettre::message::Mailbox;
use lettre::{AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use ui_message_stream::approval::{ApprovalEvent, ApprovalNotice, Notifier};
use ui_message_stream::{BoxError, BoxFuture};

/// Sends a mail for each request, and none for what happens afterwards.
#[derive(Debug)]
pub struct Mail {
    smtp: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    to: Mailbox,
}

impl Mail {
    /// Creates a notifier that sends by this server, for example `smtps://user:password@smtp.example.com`.
    ///
    /// # Errors
    /// If the URL of the server or an address is none.
    pub fn new(server: &str, from: &str, to: &str) -> Result<Self, BoxError> {
        let smtp = AsyncSmtpTransport::<Tokio1Executor>::from_url(server)?.build();
        Ok(Mail { smtp, from: from.parse()?, to: to.parse()? })
    }
}

impl Notifier for Mail {
    fn notify<'a>(&'a self, notice: &'a ApprovalNotice) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            if notice.event != ApprovalEvent::Requested {
                return Ok(());
            }
            let record = &notice.record;
            let mail = Message::builder()
                .from(self.from.clone())
                .to(self.to.clone())
                .subject(format!("Please decide: {}", record.tool_name))
                // A mail program shows a repeated mail once.
                .message_id(Some(format!("<{}@approvals>", notice.id())))
                .body(format!("{} asks:\n\n{}\n", record.requester, record.description))?;
            self.smtp.send(mail).await?;
            Ok(())
        })
    }
}
