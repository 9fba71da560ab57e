package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kubepeer/spec"
)

// populate makes, below c.Root, what a container expects of a Linux system.
func populate(c *spec.Container) error {
	for dir, mode := range map[string]os.FileMode{
		"etc": 0o755, "proc": 0o755, "sys": 0o755, "dev": 0o755, "run": 0o755, "var": 0o755, "mnt": 0o755, "opt": 0o755, "home": 0o755, "root": 0o700,
		"tmp": 0o777 | os.ModeSticky,
	} {
		path := filepath.Join(c.Root, dir)
		if err := os.Mkdir(path, mode); err != nil {
			return err
		}
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	for _, name := range shown {
		if err := show(name, c.Root); err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
	}
	for _, name := range etc {
		if err := copyFile(filepath.Join("/etc", name), filepath.Join(c.Root, "etc", name)); err != nil {
			return err
		}
	}
	return mountKernel(c)
}

// show binds a directory of the host, or repeats the link that it is on a system with merged /usr.
func show(name, root string) error {
	source, target := "/"+name, filepath.Join(root, name)
	info, err := os.Lstat(source)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		to, err := os.Readlink(source)
		if err != nil {
			return err
		}
		return os.Symlink(to, target)
	}
	return bind(source, target, true)
}

func bind(source, target string, readOnly bool) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if !readOnly {
		return nil
	}
	return setAttr(target, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// copyFile copies through links (resolv.conf is one where systemd-resolved runs); a file that the host hasn't is none here.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

// mountKernel needs to run in the container's PID namespace: a proc mount shows that of who mounts it.
func mountKernel(c *spec.Container) error {
	at := func(path string) string { return filepath.Join(c.Root, path) }
	if err := unix.Mount("proc", at("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	if err := bind("/sys", at("sys"), !c.Privileged); err != nil {
		return fmt.Errorf("/sys: %w", err)
	}
	if err := unix.Mount("tmpfs", at("dev"), "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount dev: %w", err)
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, at("dev/"+name)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(at("dev/shm"), 0o777); err != nil {
		return err
	}
	return unix.Mount("shm", at("dev/shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=64m")
}

// pivot makes root the root and drops the host's: the old one is stacked on the new one and taken away (pivot_root(2), "pivot_root(".", ".")").
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("drop the host's root: %w", err)
	}
	return unix.Chdir("/")
}
