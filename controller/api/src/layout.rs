//! Where things are in a sandbox's pod: ports and paths that the images, the operator and the server agree on. Pure.

/// Port of the door.
pub const DOOR_PORT: i32 = 4096;

/// Port of the sidecar's admin listener: probes, metrics, and whether opencode may be started.
pub const ADMIN_PORT: i32 = 8731;

/// Name of the container with the door.
pub const SIDECAR: &str = "sidecar";

/// Name of the agent's container.
pub const SANDBOX: &str = "sandbox";

/// The supervisor, in the image of a sandbox.
pub const SUPERVISOR: &str = "/opt/berth/bin/berth-supervisor";

/// opencode, in the image of a sandbox.
pub const OPENCODE: &str = "/opt/berth/bin/opencode";

/// Directory above opencode's complete configuration directory, in the image of a sandbox.
pub const CONFIG_HOME: &str = "/opt/berth/config";

/// The sidecar, in its own image.
pub const SIDECAR_PROGRAM: &str = "/berth-sidecar";

/// The volume that keeps the agent's work.
pub const WORKSPACE: &str = "/workspace";

/// Where sessions work.
pub const DIRECTORY: &str = "/workspace/work";

/// opencode's data: sessions, logs, cache. In the workspace, so that both are kept or lost together.
pub const DATA: &str = "/workspace/.opencode-data";

/// Home of the agent's user, whichever image it runs in: kept with its work, and there from the beginning.
pub const HOME: &str = "/workspace";

/// Where the sidecar finds all passwords.
pub const SECRET: &str = "/berth/secret";

/// Where the agent's container finds opencode's internal password, and no other.
pub const INTERNAL_SECRET: &str = "/berth/internal";

/// The user and the group that both containers run as.
pub const USER: i64 = 1000;
