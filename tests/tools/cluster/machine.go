package main

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	cadvisorapiv2 "github.com/google/cadvisor/info/v2"
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
	root, systemUUID, bootID, kernel string
}

func newMachine(o nodeOptions) *machine {
	m := &machine{Fake: cadvisortest.Fake{NodeName: o.name}, root: o.root, systemUUID: o.systemUUID, bootID: o.bootID}
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

func (m *machine) RootFsInfo() (cadvisorapiv2.FsInfo, error) { return m.GetDirFsInfo(m.root) }

func (m *machine) ImagesFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) {
	return m.GetDirFsInfo(m.root)
}

func (m *machine) ContainerFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) {
	return m.GetDirFsInfo(m.root)
}

func (m *machine) GetDirFsInfo(path string) (cadvisorapiv2.FsInfo, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return cadvisorapiv2.FsInfo{}, err
	}
	block := uint64(fs.Bsize)
	return cadvisorapiv2.FsInfo{
		Timestamp: time.Now(), Mountpoint: path,
		Capacity: fs.Blocks * block, Available: fs.Bavail * block, Usage: (fs.Blocks - fs.Bfree) * block,
		Inodes: &fs.Files, InodesFree: &fs.Ffree,
	}, nil
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
