package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kubepeer/spec"
)

var basicDevices = []string{"null", "zero", "full", "random", "urandom", "tty"}

type node struct {
	target string
	mode   uint32
	rdev   uint64
}

// deviceNodes are the devices that any container has (a privileged one: all that the host has at its start) and those that this one asks for.
func deviceNodes(c *spec.Container) (basic, own []node, err error) {
	if own, err = nodesOf(c.Devices); err != nil {
		return nil, nil, err
	}
	if c.Privileged {
		return hostDevices(), own, nil
	}
	var devices []spec.Device
	for _, d := range basicDevices {
		devices = append(devices, spec.Device{Source: "/dev/" + d, Target: "/dev/" + d})
	}
	basic, err = nodesOf(devices)
	return basic, own, err
}

func nodesOf(devices []spec.Device) ([]node, error) {
	var nodes []node
	for _, d := range devices {
		n, err := nodeOf(d)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func makeNodes(nodes []node) error {
	for _, n := range nodes {
		if err := n.make(); err != nil {
			return fmt.Errorf("device %s: %w", n.target, err)
		}
	}
	return nil
}

func hostDevices() []node {
	var nodes []node
	_ = filepath.WalkDir("/dev", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if entry.IsDir() && (path == "/dev/pts" || path == "/dev/shm") {
			return filepath.SkipDir
		}
		if entry.Type()&os.ModeDevice != 0 {
			// A device that vanishes meanwhile is none.
			if n, err := nodeOf(spec.Device{Source: path, Target: path}); err == nil {
				nodes = append(nodes, n)
			}
		}
		return nil
	})
	return nodes
}

func nodeOf(d spec.Device) (node, error) {
	var st unix.Stat_t
	if err := unix.Stat(d.Source, &st); err != nil {
		return node{}, fmt.Errorf("device %s: %w", d.Source, err)
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFBLK && kind != unix.S_IFCHR {
		return node{}, fmt.Errorf("%s is not a device", d.Source)
	}
	return node{target: d.Target, mode: st.Mode, rdev: st.Rdev}, nil
}

func (n node) make() error {
	if err := os.MkdirAll(filepath.Dir(n.target), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(n.target, n.mode, int(n.rdev)); err != nil {
		return err
	}
	return unix.Chmod(n.target, n.mode&0o7777)
}
