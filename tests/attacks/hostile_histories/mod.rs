//! Whatever history a client posts, in a chat that the server knows or in one that it does not:
//! never a panic, never a server error, no tool runs because of it, and what the model is given no
//! provider refuses.

mod server;
mod tampered;

use test_support::rng::{Dice, Shown, setting};

use self::server::Server;
use self::tampered::posted;

use crate::panics;

/// `HISTORY_CASES` says how many (400), `HISTORY_SEED` which ones.
#[tokio::test]
async fn a_history_of_the_client_runs_nothing_and_breaks_nothing() {
    let seed = setting("HISTORY_SEED").unwrap_or(20_261_120);
    let cases = setting("HISTORY_CASES").unwrap_or(400);
    // The runtime of this test has this one thread.
    panics::record();
    let mut met = Met::default();
    for case in 0..cases {
        let _shown = Shown { seed, case };
        let mut dice = Dice::new(seed, case);
        let server = Server::new(Dice::new(seed, u64::MAX - case));
        let mut held = Vec::new();
        if dice.chance(70) {
            let asked = r#"{"id":"m0","role":"user","parts":[{"type":"text","text":"Go"}]}"#;
            held = server.first_turn(asked).await;
        }
        for _ in 0..1 + dice.below(4) {
            let body = posted(&mut dice, &held);
            let status = server.post(&body).await;
            assert!(status < 500, "{status}: {body}");
            met.add(status, &held);
            if dice.chance(50) {
                held = server.history().await.unwrap_or(held);
            }
        }
        server.check();
        met.model_calls += server.model_calls();
        let panics = panics::on_this_thread();
        assert!(panics.is_empty(), "{panics:?}");
    }
    met.check(cases);
}

/// Whether the cases were worth anything.
#[derive(Debug, Default)]
struct Met {
    answered: usize,
    refused: usize,
    in_known_chats: usize,
    model_calls: usize,
}

impl Met {
    fn add(&mut self, status: u16, held: &[String]) {
        *(if status == 200 { &mut self.answered } else { &mut self.refused }) += 1;
        self.in_known_chats += usize::from(!held.is_empty() && status == 200);
    }

    fn check(&self, cases: u64) {
        eprintln!("{cases} chats: {self:?}");
        let all = [self.answered, self.refused, self.in_known_chats, self.model_calls];
        assert!(cases < 400 || all.iter().all(|count| *count > 100), "{self:?}");
    }
}
