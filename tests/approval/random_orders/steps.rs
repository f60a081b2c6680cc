//! The steps of an order, and the dice that choose them.

use test_support::rng::Dice;

use super::model::{
    APPROVERS, Answer, Forgery, INPUTS, Model, OWNERS, PRINCIPALS, Post, Request, TOOLS,
};

/// What happens next.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Ask {
        owner: usize,
        tool: usize,
    },
    Answer(Post),
    /// The same answers are sent again.
    Repeat(Post),
    Revoke(usize),
    /// Ends the running tool with this number.
    EndTool(usize),
    /// Time passes, in units of 10 s. Servers that are not stalled renew their leases.
    Wait {
        units: u64,
        is_stalled: bool,
        expires: bool,
    },
    /// The server is lost, with the tools that run there.
    Crash,
    /// Clients disconnect.
    Leave,
}

pub(super) fn next_step(model: &Model, posts: &[Post], dice: &mut Dice) -> Step {
    let requests = model.requests.len();
    let (owner, tool) = (dice.below(OWNERS), dice.below(TOOLS.len()));
    match dice.below(100) {
        _ if requests == 0 => Step::Ask { owner, tool },
        0..45 => Step::Answer(next_post(model, dice)),
        45..57 if !posts.is_empty() => Step::Repeat(posts[dice.below(posts.len())].clone()),
        57..72 if requests < 9 => Step::Ask { owner, tool },
        72..76 => Step::Revoke(dice.below(requests)),
        76..83 => Step::EndTool(dice.below(3)),
        83..91 => Step::Wait {
            units: [1, 1, 2, 3, 6][dice.below(5)],
            is_stalled: dice.chance(50),
            expires: dice.chance(50),
        },
        91..97 => Step::Crash,
        _ => Step::Leave,
    }
}

fn next_post(model: &Model, dice: &mut Dice) -> Post {
    let is_open = |number: &usize| model.requests[*number].first.is_none();
    let mut open: Vec<usize> = (0..model.requests.len()).filter(is_open).collect();
    if open.is_empty() || dice.chance(30) {
        open = (0..model.requests.len()).collect();
    }
    let first = open[dice.below(open.len())];
    let Request { owner, turn, tool, .. } = &model.requests[first];
    let (owner, turn, is_history) = (*owner, *turn, dice.chance(50));
    let by = match dice.below(10) {
        0..3 => dice.below(PRINCIPALS.len()),
        _ if is_history || dice.chance(50) && !tool.decided_by_others => owner,
        _ => APPROVERS[dice.below(2)],
    };
    let shown = if dice.chance(70) { model.turns[owner] } else { turn };
    let is_answerable = |request: &Request| {
        request.owner == owner
            && if is_history { request.turn <= shown } else { request.turn == turn }
    };
    let numbers = (0..model.requests.len()).filter(|&number| {
        number == first || is_answerable(&model.requests[number]) && dice.chance(30)
    });
    let numbers: Vec<usize> = numbers.collect();
    let forgeries = [Forgery::Id, Forgery::Input, Forgery::Tool, Forgery::Call];
    let answers = numbers.iter().map(|&request| {
        let forgery = match dice.below(5) {
            0 if is_history => Some(forgeries[dice.below(4)]),
            0 => Some(Forgery::Id).filter(|_| dice.chance(25)),
            _ => None,
        };
        let likely = if dice.chance(60) { 4 } else { INPUTS.len() };
        let input = Some(&INPUTS[dice.below(likely)]).filter(|_| dice.chance(60));
        Answer { request, approves: dice.chance(75), input, forgery }
    });
    let answers: Vec<Answer> = answers.collect();
    let stray = dice.below(model.requests.len());
    let is_approved = |answer: &Answer| answer.approves && answer.request == stray;
    let stray = Some(stray).filter(|_| !answers.iter().any(is_approved));
    let has_new_message = is_history && dice.chance(25);
    let gives_up = is_history && dice.chance(4);
    Post { by, is_history, owner, shown, has_new_message, gives_up, answers, stray }
}
