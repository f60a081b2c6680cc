//! HTTP: the routes, the body of a response, the users, and the requests that a route rejects.

mod axum;
mod body;
mod cross_origin;
mod policy;
mod principal;
mod route_protection;
