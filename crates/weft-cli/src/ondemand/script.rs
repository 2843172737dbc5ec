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
"#;

/// Looks at a host for a start, and then does what a word on the standard input says.
const START: &str = r#"
looks() {
  say uid "$(id -u)"
  say machine "$(uname -m)"
  say ssh "${SSH_CONNECTION:-}"
  [ -c /dev/fuse ] && say fuse yes
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
        *) say foreign "$name"; break ;;
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
  mkdir -- "$folder/bin" || return 1
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
  if [ "$resume" = no ]; then
    said=$(mkdir -- "$folder" 2>&1) || { say taken "$(cat "$folder/host" 2>/dev/null) $said"; return 1; }
    printf '%s\n' "$host" >"$folder/host" || return 1
    [ "$made_path" = no ] || : >"$folder/made-path"
  fi
  case $1 in take) takes_program || return 1 ;; esac
  printf '%s\n' "$weft" >"$folder/program"
}
main() {
  weft='' made_path=no
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
  if [ "$resume" = no ] && [ -d "$folder" ] && [ ! -e "$folder/record.json" ] &&
    [ "$(cat "$folder/host" 2>/dev/null)" = "$host" ]; then
    [ ! -e "$folder/made-path" ] || made_path=yes
    rm -rf -- "$folder"
    [ "$made_path" = no ] || rmdir -- "$path" 2>/dev/null
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
      [ -d "$entry" ] || continue
      folder=$entry count=$((count + 1))
      say folder "${entry##*/}"
    done
    [ "$count" -eq 1 ] || { [ "$count" -eq 0 ] && say nothing-there || say several; return 0; }
  else
    folder=$path/weft-ondemand-$id
    [ -d "$folder" ] || { say nothing-there; return 0; }
    say folder "weft-ondemand-$id"
  fi
  named=$(head -n 1 "$folder/program" 2>/dev/null)
  finds_weft || { say no-program "$named"; return 0; }
  if [ "$share" = yes ]; then set -- --share; else set --; fi
  "$weft" ondemand on-host --token "$token" --folder "$folder" "$@"
}
main; exit
"#;

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

    /// The script of everything that comes after a start. With `share`, others may be at work there, too.
    pub(super) fn find(&self, share: bool) -> String {
        let share = if share { "yes" } else { "no" };
        format!("{}{SAYS}{FIND}", self.settings(&[("share", share.to_owned())]))
    }
}

/// A path as the kernel lists it in `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn escaped(path: &str) -> String {
    path.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// What a shell says to a script and what follows it.
    fn run(shell: &[&str], script: &str) -> Option<String> {
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        child.stdin.take()?.write_all(script.as_bytes()).ok()?;
        let output = child.wait_with_output().ok()?;
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{shell:?}");
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
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

    #[test]
    fn the_script_that_looks_for_a_start_finds_none() {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-none-{}", std::process::id()));
        for id in ["", "7"] {
            let scene = Scene { token: "@t@", host: "a", path: &dir, id, named: "" };
            let said = run(&["sh", "-s"], &scene.find(false)).expect("there is a shell");
            assert_eq!(said, "@t@ begin\n@t@ nothing-there\n");
        }
    }
}
