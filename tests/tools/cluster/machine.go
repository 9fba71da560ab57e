package main

import (
	"path/filepath"
	"strings"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	"golang.org/x/sys/unix"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/container"
)

const (
	nodeCores  = 16
	nodeMemory = 32 << 30
)

// machine is what the kubelet would learn of its VM from cadvisor: the identity is the one that the test gave, several Nodes share this machine.
type machine struct {
	cadvisortest.Fake
	systemUUID, bootID, kernel string
}

func newMachine(o nodeOptions) *machine {
	m := &machine{Fake: cadvisortest.Fake{NodeName: o.name}, systemUUID: o.systemUUID, bootID: o.bootID}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

func (m *machine) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	return &cadvisorapi.MachineInfo{
		NumCores:       nodeCores,
		MemoryCapacity: nodeMemory,
		InstanceID:     cadvisorapi.InstanceID(m.NodeName),
		// systemd makes the machine ID of a KVM guest from this UUID (machine-id(5)).
		MachineID:  strings.ToLower(strings.ReplaceAll(m.systemUUID, "-", "")),
		SystemUUID: m.systemUUID,
		BootID:     m.bootID,
	}, nil
}

func (m *machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	return &cadvisorapi.VersionInfo{KernelVersion: m.kernel, ContainerOsVersion: "kubepeer"}, nil
}

// rerootedOS keeps the kubelet's links to container logs, whose place is fixed (pkg/kubelet/kuberuntime/legacy.go), below the node's own root.
type rerootedOS struct {
	container.RealOS
	logs string
}

func (o rerootedOS) reroot(path string) string {
	if rest, ok := strings.CutPrefix(path, "/var/log/containers/"); ok {
		return filepath.Join(o.logs, rest)
	}
	return path
}

func (o rerootedOS) Symlink(oldname, newname string) error {
	return o.RealOS.Symlink(oldname, o.reroot(newname))
}

func (o rerootedOS) Glob(pattern string) ([]string, error) { return o.RealOS.Glob(o.reroot(pattern)) }
