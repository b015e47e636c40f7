//! A Secret as the kubelet mounts it: files that are links into a directory, which is exchanged as a whole.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The mounted directory.
#[derive(Debug)]
pub(crate) struct MountedSecret {
    path: PathBuf,
    versions: u32,
    files: BTreeMap<String, String>,
}

impl MountedSecret {
    /// Mounts it.
    pub(crate) fn new(path: PathBuf, files: &[(&str, &str)]) -> Self {
        fs::create_dir_all(&path).unwrap();
        let mut secret = Self { path, versions: 0, files: BTreeMap::new() };
        secret.change(|held| {
            held.extend(files.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
        });
        secret
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the files by others, all at once.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        let before: Vec<String> = self.files.keys().cloned().collect();
        change(&mut self.files);
        self.versions += 1;
        let version = format!("..version_{}", self.versions);
        fs::create_dir(self.path.join(&version)).unwrap();
        for (name, value) in &self.files {
            fs::write(self.path.join(&version).join(name), value).unwrap();
        }
        let data = self.path.join("..data");
        let old = fs::canonicalize(&data).ok();
        symlink(&version, self.path.join("..data_tmp")).unwrap();
        fs::rename(self.path.join("..data_tmp"), &data).unwrap();
        for name in self.files.keys().filter(|name| !before.contains(name)) {
            symlink(Path::new("..data").join(name), self.path.join(name)).unwrap();
        }
        for name in before.iter().filter(|name| !self.files.contains_key(*name)) {
            fs::remove_file(self.path.join(name)).unwrap();
        }
        if let Some(old) = old {
            fs::remove_dir_all(old).unwrap();
        }
    }
}
