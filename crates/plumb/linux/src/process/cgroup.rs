//! Which pod a process belongs to, by the names of its control groups.
//!
//! Kubelet names a pod's group by its UID, below groups of the quality of service; the runtime makes one for each container in
//! it. How they are spelled depends on the driver (cgroupfs or systemd) and the runtime; which lines there are, on the version.

/// The UID of the pod that a process belongs to, from the text of its `cgroup` file; none if it is no pod's.
/// An error if the lines name different pods, or a line is not `ID:CONTROLLERS:PATH`.
pub(super) fn pod_uid(cgroups: &str) -> Result<Option<String>, String> {
    let mut found: Option<String> = None;
    for line in cgroups.lines().filter(|line| !line.is_empty()) {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(_), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!("the cgroup line {line:?} is not ID:CONTROLLERS:PATH"));
        };
        match (&found, uid_in_path(path)) {
            (Some(before), Some(uid)) if *before != uid => {
                return Err(format!("the cgroups name two pods, {before} and {uid}"));
            }
            (None, Some(uid)) => found = Some(uid),
            _ => {}
        }
    }
    Ok(found)
}

/// Finds the innermost `…<punctuation>pod<uid><punctuation>…<container id>` in a group's path. The innermost is the pod of the
/// cluster that started the container, also where that cluster's node is itself a pod of another one.
fn uid_in_path(path: &str) -> Option<String> {
    let path = path.strip_suffix(".scope").unwrap_or(path);
    let is_mark = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_punctuation());
    let bytes = path.as_bytes();
    path.rmatch_indices("pod").find_map(|(at, _)| {
        let preceded = at.checked_sub(1).is_some_and(|before| is_mark(bytes.get(before).copied()));
        let length = uid_length(bytes.get(at + 3..)?)?;
        let (uid, rest) = path[at + 3..].split_at(length);
        // A container's own group follows the pod's: `/ID`, `.slice/RUNTIME-ID`, `.slice:RUNTIME:ID`.
        let rest = rest.strip_prefix(".slice").unwrap_or(rest);
        let container = rest.starts_with(['/', ':']) && !is_mark(rest.bytes().last()) && !is_monitor(rest);
        (preceded && container).then(|| {
            uid.chars().map(|c| if c.is_ascii_punctuation() { '-' } else { c.to_ascii_lowercase() }).collect()
        })
    })
}

/// CRI-O's process that watches over a container runs beside it, in a group of its own below the pod's; it is the node's.
/// Source: crio.conf(5), `conmon_cgroup = "pod"`.
fn is_monitor(container: &str) -> bool {
    container.split(['/', ':', '-', '.']).any(|part| part == "conmon")
}

/// Length of the UID at the start: groups of 8, 4, 4, 4 and 12 hexadecimal digits with a mark or nothing between them.
fn uid_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    for (index, digits) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 && bytes.get(at)?.is_ascii_punctuation() {
            at += 1;
        }
        bytes.get(at..at + digits)?.iter().all(u8::is_ascii_hexdigit).then_some(())?;
        at += digits;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "3b1f1ca4-1f0b-4a3e-9d53-0b0a4d9c8e71";
    const OUTER: &str = "9c2e7b10-55aa-4f0e-8a11-2f4e6d8c0b3a";
    const ID: &str = "7c5d4c8e5b6f4a1e9c0d3b2a1f0e9d8c7b6a5f4e3d2c1b0a9f8e7d6c5b4a3f2e";

    /// In the text, UID stands for the pod's, UID_ for it as systemd writes it, OUTER for another pod's, ID for a container's.
    #[track_caller]
    fn check(cgroups: &str, expected: Option<&str>) {
        let text = cgroups
            .replace("OUTER", OUTER)
            .replace("UID_", &UID.replace('-', "_"))
            .replace("UID", UID)
            .replace("HEX", &UID.replace('-', ""))
            .replace("ID", ID);
        assert_eq!(pod_uid(&text).unwrap().as_deref(), expected, "{text}");
    }

    #[test]
    fn the_pod_is_found_in_every_layout() {
        for layout in [
            // Driver cgroupfs, all qualities of service; v1 has a line per controller.
            "12:memory:/kubepods/besteffort/podUID/ID\n11:cpu,cpuacct:/kubepods/besteffort/podUID/ID\n",
            "0::/kubepods/burstable/podUID/ID",
            "0::/kubepods/podUID/ID",
            // Driver systemd: containerd, CRI-O, Docker.
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID_.slice/cri-containerd-ID.scope",
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID_.slice/crio-ID.scope",
            "0::/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope",
            "0::/kubepods.slice/kubepods-podUID_.slice/docker-ID.scope",
            // The runtime with the wrong driver: slices as plain names.
            "1:name=systemd:/system.slice/containerd.service/kubepods-podUID_.slice:cri-containerd:ID",
            "0::/kubepods-burstable-podUID_.slice:cri-containerd:ID",
            // CRI-O that splits the container's group from its own, crun's in particular.
            "0::/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope/container",
            // v1 and v2 side by side: only some controllers are delegated, v2 is the root.
            "2:cpu:/\n1:memory:/kubepods/podUID/ID\n0::/\n",
            "12:pids:/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope\n1:name=systemd:/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope\n0::/\n",
            // kind and minikube: the node is a container itself.
            "9:pids:/docker/ID/kubelet/kubepods/besteffort/podUID/ID",
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podUID_.slice/cri-containerd-ID.scope",
            "0::/system.slice/docker-ID.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUID_.slice/cri-containerd-ID.scope",
            "0::/docker/ID/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope",
            // k3s and microk8s under a unit or in a container.
            "0::/k3s/kubepods/burstable/podUID/ID",
            "0::/system.slice/k3s.service/kubepods/podUID/ID",
            // The node is a pod of another cluster.
            "0::/kubepods/podOUTER/ID/kubelet/kubepods/podUID/ID",
            "0::/kubepods.slice/kubepods-podOUTER.slice/cri-containerd-ID.scope/kubelet.slice/kubelet-kubepods-podUID_.slice/cri-containerd-ID.scope",
            // Seen from within a control group namespace.
            "0::/../../podUID/ID",
            "0::/../../../kubepods-besteffort-podUID_.slice/cri-containerd-ID.scope",
            // Groups that the container made within its own: systemd, Docker.
            "0::/kubepods/podUID/ID/init.scope",
            "0::/kubepods.slice/kubepods-podUID_.slice/cri-containerd-ID.scope/system.slice/nginx.service",
            "0::/kubepods/podUID/ID/docker/ID",
        ] {
            check(layout, Some(UID));
        }
        // A static pod's UID is a hash without dashes.
        check("0::/kubepods/podHEX/ID", Some(&UID.replace('-', "")));
        // Upper case comes from nowhere, and means the same.
        check(&format!("0::/kubepods/pod{}/x", UID.to_uppercase()), Some(UID));
    }

    #[test]
    fn other_processes_belong_to_no_pod() {
        for layout in [
            "",
            "0::/",
            "0::/user.slice/user-0.slice/session-1.scope",
            "0::/system.slice/containerd.service",
            "0::/system.slice/docker-ID.scope",
            "0::/docker/ID",
            // CRI-O and Podman: the monitor of a container, in the pod's group or the system's.
            "0::/kubepods.slice/kubepods-podUID_.slice/crio-conmon-ID.scope",
            "0::/kubepods.slice/kubepods-podUID_.slice:crio-conmon:ID",
            "0::/kubepods/podUID/crio-conmon-ID",
            "0::/kubepods/podUID/conmon",
            "0::/system.slice/crio-conmon-ID.scope",
            "0::/machine.slice/libpod-conmon-ID.scope",
            // CRI-O without a pod, and shims in the group of the pod itself.
            "0::/machine.slice/crio-ID.scope",
            "0::/kubepods/besteffort/podUID",
            "0::/kubepods/besteffort/podUID/",
            "0::/kubepods.slice/kubepods-podUID_.slice",
            // What looks like one.
            "0::/kubepods/besteffort/xpodUID/ID",
            "0::/kubepods/podnonsense/ID",
            "0::/kubepods/podUID0/ID",
            "0::/pod",
            "0::/kubepods/pod\u{e9}1f1ca4/ID",
        ] {
            check(layout, None);
        }
    }

    #[test]
    fn contradictions_and_broken_lines_are_errors() {
        let two = format!("1:a:/x/pod{UID}/c\n0::/x/pod{OUTER}/c");
        assert!(pod_uid(&two).unwrap_err().contains("two pods"));
        assert!(pod_uid("1:a").unwrap_err().contains("not ID:CONTROLLERS:PATH"));
    }
}
