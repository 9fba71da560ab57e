package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"kubepeer/spec"
)

// shown are the host's directories whose programs and libraries the container has, read-only.
var shown = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc/alternatives", "etc/ssl"}

// etc is what the container gets a copy of: its own /etc can be mounted upon and written to.
var etc = []string{"passwd", "group", "hosts", "resolv.conf", "nsswitch.conf", "ld.so.cache", "mke2fs.conf", "services", "protocols", "localtime"}

// grafted is a copy of a mount tree of the host that isn't mounted anywhere yet.
type grafted struct {
	fd     int
	isDir  bool
	volume spec.Mount
}

// enterRoot leaves the process in a root of its own: a tmpfs with the host's programs, a private /dev and the container's volumes. Whatever it takes
// from the host it opens first, while the mounts are still peers of the host's, then cuts the namespace off, so that nothing mounted here shows there.
func enterRoot(c *spec.Container) error {
	volumes, err := openVolumes(c.Mounts)
	if err != nil {
		return err
	}
	basic, own, err := deviceNodes(c)
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cut off the mount namespace: %w", err)
	}
	if err := unix.Mount("tmpfs", c.Root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount root on %s: %w", c.Root, err)
	}
	if err := populate(c); err != nil {
		return err
	}
	if err := pivot(c.Root); err != nil {
		return err
	}
	// Before the volumes: one of them may be the host's /dev.
	if err := makeNodes(basic); err != nil {
		return err
	}
	if err := attachVolumes(volumes); err != nil {
		return err
	}
	if err := makeNodes(own); err != nil {
		return err
	}
	if c.ReadOnlyRoot {
		return setAttr("/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	}
	return nil
}

func attachVolumes(volumes []grafted) error {
	hostDev := false
	for _, v := range volumes {
		hostDev = hostDev || v.volume.Target == "/dev"
		// Every container has this file, and the host's /dev is no place to make it.
		if hostDev && v.volume.Target == "/dev/termination-log" {
			continue
		}
		if err := v.attach(); err != nil {
			return fmt.Errorf("volume %s: %w", v.volume.Target, err)
		}
	}
	return nil
}

// openVolumes sorts by depth: a volume may lie in another one.
func openVolumes(mounts []spec.Mount) ([]grafted, error) {
	sort.SliceStable(mounts, func(i, j int) bool { return depth(mounts[i].Target) < depth(mounts[j].Target) })
	var all []grafted
	for _, m := range mounts {
		g, err := graft(m)
		if err != nil {
			return nil, fmt.Errorf("volume %s from %s: %w", m.Target, m.Source, err)
		}
		all = append(all, g)
	}
	return all, nil
}

func depth(path string) int { return strings.Count(filepath.Clean(path), "/") }

func graft(m spec.Mount) (grafted, error) {
	info, err := os.Stat(m.Source)
	if err != nil {
		return grafted{}, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return grafted{}, fmt.Errorf("open_tree: %w", err)
	}
	return grafted{fd: fd, isDir: info.IsDir(), volume: m}, nil
}

func (g grafted) attach() error {
	propagation := map[spec.Propagation]uint64{spec.Private: unix.MS_PRIVATE, spec.HostToContainer: unix.MS_SLAVE, spec.Bidirectional: 0}
	if p := propagation[g.volume.Propagation]; p != 0 {
		if err := setFdAttr(g.fd, unix.AT_RECURSIVE, &unix.MountAttr{Propagation: p}); err != nil {
			return err
		}
	}
	if g.volume.ReadOnly {
		flags := uint(0)
		if g.volume.RecursiveReadOnly {
			flags = unix.AT_RECURSIVE
		}
		if err := setFdAttr(g.fd, flags, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return err
		}
	}
	if err := g.makeTarget(); err != nil {
		return err
	}
	if err := unix.MoveMount(g.fd, "", unix.AT_FDCWD, g.volume.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	if g.volume.Propagation == spec.Bidirectional && !isShared(g.volume.Target) {
		return fmt.Errorf("%s is not on a shared mount", g.volume.Source)
	}
	return unix.Close(g.fd)
}

func (g grafted) makeTarget() error {
	if g.isDir {
		return os.MkdirAll(g.volume.Target, 0o755)
	}
	return touch(g.volume.Target)
}

func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

func setFdAttr(fd int, flags uint, attr *unix.MountAttr) error {
	if err := unix.MountSetattr(fd, "", flags|unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

func setAttr(path string, flags uint, attr *unix.MountAttr) error {
	if err := unix.MountSetattr(unix.AT_FDCWD, path, flags, attr); err != nil {
		return fmt.Errorf("mount_setattr %s: %w", path, err)
	}
	return nil
}

// isShared reads the optional fields of the last mount on path (proc_pid_mountinfo(5)).
func isShared(path string) bool {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	shared := false
	for _, line := range strings.Split(string(info), "\n") {
		fields, _, _ := strings.Cut(line, " - ")
		f := strings.Fields(fields)
		if len(f) > 5 && f[4] == filepath.Clean(path) {
			shared = strings.Contains(fields, " shared:")
		}
	}
	return shared
}
