//! The protocol: chunks, messages, requests, streams and the tool loop, without a server.

mod checker;
mod containers;
mod corpus;
mod documented_programs;
mod fault_table;
mod layering;
mod message;
mod model_messages;
mod reducer;
mod request;
mod testing_conversation;
mod translator;
mod wire;
