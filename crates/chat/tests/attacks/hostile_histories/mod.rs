//! Random histories that a client posts, in a chat that the server knows or in a new one: the
//! server never panics and never returns a server error, no tool runs because of the history, and
//! no provider would reject the prompt.

mod server;
mod tampered;

use test_support::rng::{Dice, Shown, setting};

use self::server::Server;
use self::tampered::random_body;

use crate::panics;

/// `HISTORY_CASES` sets the number of cases (400), `HISTORY_SEED` the seed.
#[tokio::test]
async fn a_random_client_history_runs_no_tool_and_causes_no_panic_or_server_error() {
    let seed = setting("HISTORY_SEED").unwrap_or(20_261_120);
    let cases = setting("HISTORY_CASES").unwrap_or(400);
    // The runtime of this test has only this thread.
    panics::record();
    let mut coverage = Coverage::default();
    for case in 0..cases {
        let _shown = Shown { seed, case };
        let mut dice = Dice::new(seed, case);
        let server = Server::new(Dice::new(seed, u64::MAX - case));
        let mut messages = Vec::new();
        if dice.chance(70) {
            let user_message = r#"{"id":"m0","role":"user","parts":[{"type":"text","text":"Go"}]}"#;
            messages = server.first_turn(user_message).await;
        }
        for _ in 0..1 + dice.below(4) {
            let body = random_body(&mut dice, &messages);
            let status = server.post(&body).await;
            assert!(status < 500, "{status}: {body}");
            coverage.add(status, &messages);
            if dice.chance(50) {
                messages = server.history().await.unwrap_or(messages);
            }
        }
        server.check();
        coverage.model_calls += server.model_calls();
        let panics = panics::on_this_thread();
        assert!(panics.is_empty(), "{panics:?}");
    }
    coverage.check(cases);
}

/// Counts that show whether the cases covered enough.
#[derive(Debug, Default)]
struct Coverage {
    answered: usize,
    rejected: usize,
    in_existing_chats: usize,
    model_calls: usize,
}

impl Coverage {
    fn add(&mut self, status: u16, messages: &[String]) {
        *(if status == 200 { &mut self.answered } else { &mut self.rejected }) += 1;
        self.in_existing_chats += usize::from(!messages.is_empty() && status == 200);
    }

    fn check(&self, cases: u64) {
        eprintln!("{cases} chats: {self:?}");
        let all = [self.answered, self.rejected, self.in_existing_chats, self.model_calls];
        assert!(cases < 400 || all.iter().all(|count| *count > 100), "{self:?}");
    }
}
