//! The arms: which servers are measured.

/// A server that is measured.
pub(crate) struct Arm {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The name in tables.
    pub(crate) title: &'static str,
    /// What the arm is, in one sentence.
    pub(crate) about: &'static str,
    pub(crate) kit: Kit,
    /// Whether it takes part in the stage with a paced text.
    pub(crate) is_paced: bool,
    /// Whether its responses hold the outputs of tools.
    pub(crate) sends_outputs: bool,
}

/// What is built or installed to run an arm.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kit {
    /// The program `bench-arms`: this repository, and what is written without it.
    Ours,
    /// A package of this workspace that depends on a peer.
    Crate { package: &'static str, peer: &'static str },
    /// The folder of a program for Node.
    Node { folder: &'static str, peer: &'static str },
    /// The folder of a program in Python.
    Python { folder: &'static str, peer: &'static str },
}

/// All arms. The first one is the limit, to which the others are compared.
pub(crate) static ARMS: [Arm; 12] = [
    Arm::ours(
        "frames-16",
        "limit: ready frames, 16 together",
        "Sends frames that were written when the server started, 16 of them in each frame of the body; it reads no request.",
    ),
    Arm {
        is_paced: false,
        ..Arm::ours(
            "frames-1",
            "limit: ready frames, one by one",
            "The same with one frame in each frame of the body, as a server does that passes on each frame alone.",
        )
    },
    Arm::ours(
        "reply",
        "`reply`",
        "`UiMessageStream::reply` of this crate: the body of the response polls the stream of the agent.",
    ),
    Arm::ours(
        "own-task",
        "`reply`, agent in a task",
        "The same, but the agent runs in a task of its own and sends its events over a channel of 64.",
    ),
    Arm::ours(
        "chats",
        "chat server",
        "`chat_routes` of `ui-message-stream-chat` with conversations in memory: clients can rejoin a response, and the messages are stored.",
    ),
    Arm {
        is_paced: false,
        ..Arm::ours(
            "agent",
            "`Agent` behind the chat server",
            "`Agent` of `ui-message-stream-agent` with its tool loop, typed tools and a scripted model, behind the chat server.",
        )
    },
    Arm::ours(
        "sse",
        "axum by hand",
        "Idiomatic axum without this crate: an `async-stream` agent, a channel of 64, `Sse` of `Event::json_data`, `KeepAlive`.",
    ),
    Arm::ours(
        "sse-log",
        "axum by hand, with a log",
        "The same with a log of each chat that the response reads, so that a client could rejoin.",
    ),
    Arm {
        sends_outputs: false,
        ..Arm::peer(
            "aisdk",
            "aisdk",
            "`stream_text` with a scripted model and a tool, and `to_axum_vercel_ui_stream`; its responses hold no chunks of tools.",
            Kit::Crate { package: "bench-peer-aisdk", peer: "aisdk" },
        )
    },
    Arm::peer(
        "rig-ai-sdk",
        "rig-ai-sdk",
        "`adapt_rig_stream_sse` over the items of a rig agent's stream, which are ready, and `Sse`.",
        Kit::Crate { package: "bench-peer-rig-ai-sdk", peer: "rig-ai-sdk" },
    ),
    Arm::peer(
        "ai-sdk",
        "AI SDK on Node",
        "The AI SDK's own server: `createUIMessageStream`, whose writer gets the chunks, and `pipeUIMessageStreamToResponse`.",
        Kit::Node { folder: "peers/ai-sdk", peer: "ai" },
    ),
    Arm::peer(
        "pydantic-ai",
        "pydantic-ai",
        "`transform_stream` and `streaming_response` of its Vercel AI adapter over an agent's events, which are ready, on Starlette and uvicorn with uvloop.",
        Kit::Python { folder: "peers/pydantic-ai", peer: "pydantic-ai-slim" },
    ),
];

impl Arm {
    const fn ours(name: &'static str, title: &'static str, about: &'static str) -> Self {
        Arm { name, title, about, kit: Kit::Ours, is_paced: true, sends_outputs: true }
    }

    const fn peer(name: &'static str, title: &'static str, about: &'static str, kit: Kit) -> Self {
        Arm { name, title, about, kit, is_paced: false, sends_outputs: true }
    }
}
