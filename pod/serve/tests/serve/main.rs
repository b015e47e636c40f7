//! The supervisor over real processes: programs that stand in for opencode where the real one cannot be made to
//! misbehave, and the real one.

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod kernel;
#[cfg(test)]
mod killed_supervisor;
#[cfg(test)]
mod program;
#[cfg(test)]
mod real;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod supervisor;
