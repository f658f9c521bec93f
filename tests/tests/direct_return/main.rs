//! Direct server return: real agents on a director and on the server's node, real clients and servers, and answers that do not
//! come back through the director.

mod changes;
mod kubernetes;
mod lan;
mod rules;
