//! HTTP: the routes, the body of a response, the users, the requests that a route rejects,
//! and the server.

mod axum;
mod body;
mod cross_origin;
mod policy;
mod serve;
