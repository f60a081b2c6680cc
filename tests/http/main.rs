//! HTTP: the routes, the body of a response, and the requests that a route rejects.

mod axum;
mod body;
mod cross_origin;
mod policy;
mod route_protection;
