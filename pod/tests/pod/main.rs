//! The pod's parts over real sockets: the door against an upstream that the test controls, then supervisor and door
//! against a real opencode.

mod door_events;
mod door_proxy;
mod real_opencode;
mod rig;
