//! The scripts that hosts run, for any POSIX shell, and what they say.
//!
//! It owns their text, and how paths stand in it. A script comes on the standard input of `/bin/sh`: nothing
//! of it goes through the login shell of the host. All that it says is marked with a word that is new for
//! each start, so that what a host prints at a login is never taken for an answer.

use std::path::Path;

/// What ssh has the host run. It means the same in every login shell.
pub(super) const SHELL: &str = "exec /bin/sh -s";

/// What [`probe_line`] begins with. The number changes when old and new programs do not understand each
/// other.
const PROBE: &str = "weft-ondemand 1";

/// The beginning of the name of a folder below PATH.
pub(super) const FOLDER: &str = "weft-ondemand-";

/// What a program says that can take part: hosts run the same version on the same kind of processor.
pub(super) fn probe_line() -> String {
    format!("{PROBE} {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// A text as one word of a POSIX shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// What all scripts begin with. They are one function, so that the shell has read all of it before it runs
/// any, and what follows on its standard input is left to what the function starts.
const SAYS: &str = r#"
say() { printf '%s ' "$token"; printf '%s' "$*" | tr '\n\r' '??'; printf '\n'; }
finds_weft() { # says which program is there, and sets weft to one that can take part
  for at in "$named" "$(command -v weft 2>/dev/null)" /usr/bin/weft /usr/local/bin/weft; do
    [ -n "$at" ] && [ -x "$at" ] && [ -f "$at" ] || continue
    said=$("$at" ondemand on-host --probe </dev/null 2>/dev/null)
    if [ "$said" = "$probe" ]; then
      weft=$at
      say weft "$at"
      return 0
    fi
    say other-weft "$("$at" -V </dev/null 2>/dev/null | head -n 1) at $at"
  done
  return 1
}
is_own() { # whether this user alone writes to a folder: only then is done what it says
  [ -d "$1" ] && [ ! -L "$1" ] || return 1
  set -- $(ls -ldn -- "$1" 2>/dev/null | head -n 1)
  case ${1:-} in d????-??-*) [ "${3:-}" = "$(id -u)" ] ;; *) return 1 ;; esac
}
"#;

/// Looks at a host for a start, and then does what a word on the standard input says.
const START: &str = r#"
looks() {
  say uid "$(id -u)"
  say machine "$(uname -m)"
  say ssh "${SSH_CONNECTION:-}"
  [ -c /dev/fuse ] && [ -w /dev/fuse ] && say fuse yes
  command -v fusermount3 >/dev/null 2>&1 && say fusermount yes
  finds_weft
  if [ -d "$path" ]; then
    say path folder
    [ -w "$path" ] && [ -x "$path" ] && say path writable
    for entry in "$path"/* "$path"/.[!.]* "$path"/..?*; do
      [ -e "$entry" ] || [ -L "$entry" ] || continue
      name=${entry##*/}
      case $name in
        lost+found) ;;
        weft-ondemand-*)
          state=$(sed -n 's/.*"state": *"\([a-z]*\)".*/\1/p' "$entry/record.json" 2>/dev/null | head -n 1)
          say ondemand "$name ${state:-unknown}"
          ;;
        *)
          if [ -b "$entry" ]; then say device "$name"; else say foreign "$name"; break; fi
          ;;
      esac
    done
  elif [ -e "$path" ] || [ -L "$path" ]; then
    say path file
  fi
  above=$path
  while [ ! -d "$above" ]; do above=$(dirname -- "$above"); done
  [ -w "$above" ] && say above writable
  say free "$(df -Pk -- "$above" 2>/dev/null |
    awk 'NR > 1 { for (i = 2; i <= NF; i++) if ($i ~ /^[0-9]+%$/) { print $(i - 1); exit } }')"
  if [ -d "$mountpoint" ]; then
    say mountpoint folder
    first=$(ls -A -- "$mountpoint" 2>/dev/null | head -n 1)
    [ -z "$first" ] || say mountpoint-holds "$first"
  elif [ -e "$mountpoint" ] || [ -L "$mountpoint" ]; then
    say mountpoint file
  fi
  while read -r a b c d at e; do
    [ "$at" != "$escaped" ] || say mounted "${e#* - }"
  done </proc/self/mountinfo
  say looked
}
takes_program() {
  mkdir -p -- "$folder/bin" && rm -f -- "$folder/bin/weft" || return 1
  say ready
  head -c "$bytes" >"$folder/bin/weft"
  if [ "$(wc -c <"$folder/bin/weft")" -ne "$bytes" ]; then
    say refused "the program did not arrive whole"
    return 1
  fi
  chmod 700 -- "$folder/bin/weft"
  weft=$folder/bin/weft
  [ "$("$weft" ondemand on-host --probe </dev/null 2>/dev/null)" = "$probe" ] && return 0
  say refused "the copied program does not run there: $("$weft" ondemand on-host --probe </dev/null 2>&1)"
  return 1
}
claims() {
  umask 077
  if [ ! -d "$path" ]; then
    said=$(mkdir -p -- "$path" 2>&1) || { say refused "$said"; return 1; }
    made_path=yes
  fi
  if [ "$resume" = yes ]; then
    is_own "$folder" || { say refused "$folder is not a folder that this user alone can write to"; return 1; }
  elif said=$(mkdir -- "$folder" 2>&1); then
    made_folder=yes
    said=$({ printf '%s\n' "$host" >"$folder/host"; } 2>&1) || { say refused "$said"; return 1; }
    [ "$made_path" = no ] || printf '%s\n' "$above" >"$folder/made-path"
  elif [ -d "$folder" ]; then
    say taken "$(cat "$folder/host" 2>/dev/null)"
    return 1
  else
    say refused "$said"
    return 1
  fi
  case $1 in take) takes_program || return 1 ;; esac
  printf '%s\n' "$weft" >"$folder/program"
}
main() {
  weft='' made_path=no made_folder=no
  say begin
  looks
  read -r word id || return 0
  case $word in claim | take) ;; *) return 0 ;; esac
  folder=$path/weft-ondemand-$id
  if claims "$word"; then
    say claimed
    "$weft" ondemand on-host --token "$token" --folder "$folder"
  else
    say given-up
  fi
  # Nothing has begun that would have to be ended: then nothing stays.
  if [ "$made_folder" = yes ] && [ ! -e "$folder/record.json" ]; then rm -rf -- "$folder"; fi
  if [ "$made_path" = yes ]; then
    at=$path
    while [ "$at" != "$above" ] && rmdir -- "$at" 2>/dev/null; do at=$(dirname -- "$at"); done
  fi
}
main; exit
"#;

/// Finds what a start has left on a host, and hands over to its program.
const FIND: &str = r#"
main() {
  weft=''
  say begin
  if [ -z "$id" ]; then
    count=0
    for entry in "$path"/weft-ondemand-*; do
      is_own "$entry" || continue
      folder=$entry count=$((count + 1))
      say folder "${entry##*/}"
    done
    [ "$count" -eq 1 ] || { [ "$count" -eq 0 ] && say nothing-there || say several; return 0; }
  else
    folder=$path/weft-ondemand-$id
    [ -e "$folder" ] || [ -L "$folder" ] || { say nothing-there; return 0; }
    is_own "$folder" || { say refused "$folder is not a folder that this user alone can write to"; return 0; }
    say folder "weft-ondemand-$id"
  fi
  named=$(head -n 1 "$folder/program" 2>/dev/null)
  finds_weft || { say no-program "$named"; return 0; }
  "$weft" ondemand on-host --token "$token" --folder "$folder" $how
}
main; exit
"#;

/// How a command wants to work on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Others may be at work there at the same time.
    Shared,
    /// After all others.
    Alone,
    /// As [`How::Alone`]; another one that does not come to its end is ended.
    Forced,
}

/// What a script for a host is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    /// What marks the lines that are meant for this program.
    pub(super) token: &'a str,
    /// The name that the host file has for the host.
    pub(super) host: &'a str,
    /// The folder on each host that holds the data.
    pub(super) path: &'a Path,
    /// The identity of the file system; empty for the only one that there is.
    pub(super) id: &'a str,
    /// The program that is looked at first; empty for none.
    pub(super) named: &'a str,
}

impl Scene<'_> {
    fn settings(&self, more: &[(&str, String)]) -> String {
        let all = [
            ("token", quoted(self.token)),
            ("host", quoted(self.host)),
            ("path", quoted_path(self.path)),
            ("id", quoted(self.id)),
            ("named", quoted(self.named)),
            ("probe", quoted(&probe_line())),
        ];
        all.iter().chain(more).map(|(name, value)| format!("{name}={value}\n")).collect()
    }

    /// The script of a start. It reads a line from its standard input: `claim ID`, `take ID` (and then the
    /// program, of so many bytes, once it says `ready`), or another one to end.
    pub(super) fn start(&self, mountpoint: &Path, program_bytes: u64, resume: bool) -> String {
        let settings = self.settings(&[
            ("mountpoint", quoted_path(mountpoint)),
            ("escaped", quoted(&escaped(&mountpoint.to_string_lossy()))),
            ("bytes", program_bytes.to_string()),
            ("resume", (if resume { "yes" } else { "no" }).to_owned()),
        ]);
        format!("{settings}{SAYS}{START}")
    }

    /// The script of everything that comes after a start.
    pub(super) fn find(&self, how: How) -> String {
        let how = match how {
            How::Shared => "--share",
            How::Alone => "''",
            How::Forced => "--force",
        };
        format!("{}{SAYS}{FIND}", self.settings(&[("how", how.to_owned())]))
    }
}

/// A path as the kernel lists it in `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn escaped(path: &str) -> String {
    path.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    /// What a shell says to a script.
    fn run(shell: &[&str], script: &str) -> Option<String> {
        talk(shell, script, "")
    }

    /// What a shell says to a script, and to what is sent once it has looked around: a shell may read more
    /// than its script.
    fn talk(shell: &[&str], script: &str, then: &str) -> Option<String> {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut stdin = child.stdin.take()?;
        stdin.write_all(script.as_bytes()).ok()?;
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take()?);
        while !then.is_empty() && !said.ends_with("looked\n") && out.read_line(&mut said).ok()? > 0 {}
        stdin.write_all(then.as_bytes()).ok()?;
        drop(stdin);
        out.read_to_string(&mut said).ok()?;
        let output = child.wait_with_output().ok()?;
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{shell:?}");
        Some(said)
    }

    #[test]
    fn paths_are_one_word_of_every_shell() {
        let odd = "/a b/it's $HOME `x` \"y\" \\z\n*";
        for shell in [&["sh", "-s"][..], &["bash", "--posix", "-s"], &["busybox", "sh", "-s"]] {
            let said = run(shell, &format!("printf '%s' {}", quoted(odd)));
            assert!(said.is_none_or(|said| said == odd), "{shell:?}");
        }
    }

    #[test]
    fn the_script_of_a_start_looks_and_leaves_everything_as_it_is() {
        let dir = std::env::temp_dir().join(format!("weft ondemand's script {}", std::process::id()));
        std::fs::create_dir_all(dir.join("there")).expect("made");
        std::fs::write(dir.join("there/thesis.tex"), "x").expect("written");
        for shell in [&["sh", "-s"][..], &["bash", "--posix", "-s"], &["busybox", "sh", "-s"]] {
            for path in ["there", "missing/below"] {
                let path = dir.join(path);
                let scene = Scene { token: "@t@", host: "a", path: &path, id: "1", named: "" };
                let Some(said) = run(shell, &scene.start(&dir, 5, false)) else { continue };
                let is_there = path.ends_with("there");
                assert!(
                    said.starts_with("@t@ begin\n") && said.ends_with("@t@ looked\n"),
                    "{shell:?}: {said}"
                );
                assert_eq!(said.contains("@t@ foreign thesis.tex\n"), is_there, "{shell:?}: {said}");
                assert_eq!(said.contains("@t@ path writable\n"), is_there, "{shell:?}: {said}");
                assert!(said.contains("@t@ mountpoint folder\n@t@ mountpoint-holds there\n"), "{said}");
                assert!(said.lines().any(|l| l.starts_with("@t@ free ") && l.len() > 9), "{shell:?}: {said}");
            }
        }
        assert_eq!(std::fs::read_dir(&dir).expect("there").count(), 1);
        std::fs::remove_dir_all(dir).expect("removed");
    }

    /// A program that says that it can take part, and then does what is given.
    fn stand_in(dir: &Path, does: &str) -> String {
        let program = dir.join("stand-in");
        let script = format!("#!/bin/sh\n[ \"$3\" = --probe ] && exec echo '{}'\n{does}\n", probe_line());
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("set");
        program.display().to_string()
    }

    #[test]
    fn a_start_that_ends_before_it_has_a_record_leaves_nothing() {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-early-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("made");
        let named = stand_in(&dir, "echo \"$4 serves\"");
        let path = dir.join("not/there yet");
        let scene = Scene { token: "@t@", host: "a", path: &path, id: "", named: &named };
        for shell in [&["sh", "-s"][..], &["bash", "--posix", "-s"], &["busybox", "sh", "-s"]] {
            let script = scene.start(&dir, 5, false);
            let Some(said) = talk(shell, &script, "claim 7f\n") else { continue };
            assert!(said.ends_with("@t@ claimed\n@t@ serves\n"), "{shell:?}: {said}");
            assert!(!dir.join("not").exists(), "{shell:?}: {said}");
            // The connection ends before the whole program has come.
            let said = talk(shell, &script, "take 7f\nabc").expect("there is a shell");
            assert!(said.contains("refused the program did not arrive whole\n@t@ given-up\n"), "{said}");
            assert!(!dir.join("not").exists(), "{shell:?}: {said}");
        }
        std::fs::create_dir_all(path.join("weft-ondemand-7f")).expect("made");
        let said = talk(&["sh", "-s"], &scene.start(&dir, 5, false), "claim 7f\n");
        assert!(said.is_some_and(|said| said.ends_with("@t@ taken \n@t@ given-up\n")));
        assert!(path.join("weft-ondemand-7f").exists(), "what another one has made stays");
        std::fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn a_program_that_another_user_names_is_not_run() {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-others-{}", std::process::id()));
        let folder = dir.join("weft-ondemand-7f");
        std::fs::create_dir_all(&folder).expect("made");
        let named = stand_in(&dir, "echo \"$4 serves $*\"");
        std::fs::write(folder.join("program"), format!("{named}\n")).expect("written");
        let find = |id, how| {
            let scene = Scene { token: "@t@", host: "a", path: &dir, id, named: "" };
            run(&["sh", "-s"], &scene.find(how)).expect("there is a shell")
        };
        let set = |mode| {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        set(0o700);
        for (how, word) in [(How::Alone, ""), (How::Shared, " --share"), (How::Forced, " --force")] {
            let serves = format!("--folder {}{word}\n", folder.display());
            assert!(find("", how).ends_with(&serves) && find("7f", how).ends_with(&serves));
        }
        set(0o777);
        assert_eq!(find("", How::Alone), "@t@ begin\n@t@ nothing-there\n");
        assert!(find("7f", How::Alone).starts_with("@t@ begin\n@t@ refused /"));
        std::fs::rename(&folder, dir.join("elsewhere")).expect("moved");
        std::os::unix::fs::symlink(dir.join("elsewhere"), &folder).expect("made");
        assert_eq!(find("", How::Alone), "@t@ begin\n@t@ nothing-there\n");
        assert!(find("7f", How::Alone).contains("@t@ refused /"));
        std::fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn the_script_that_looks_for_a_start_finds_none() {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-none-{}", std::process::id()));
        for id in ["", "7"] {
            let scene = Scene { token: "@t@", host: "a", path: &dir, id, named: "" };
            let said = run(&["sh", "-s"], &scene.find(How::Alone)).expect("there is a shell");
            assert_eq!(said, "@t@ begin\n@t@ nothing-there\n");
        }
    }
}
