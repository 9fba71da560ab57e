// Package spec is what kubepeer's runtime tells container-init: one JSON value on descriptor 3, which stays open as long as the container may live.
package spec

// Descriptors that container-init inherits.
const (
	// SpecFD carries the Container; its end of file means that the runtime is gone.
	SpecFD = 3
	// StatusFD takes the reason why the command could not be started; closed without a byte, it runs.
	StatusFD = 4
)

// Propagation of a volume's mounts between host and container, as in the CRI.
type Propagation string

const (
	Private         Propagation = "private"
	HostToContainer Propagation = "host-to-container"
	Bidirectional   Propagation = "bidirectional"
)

// Mount binds the host's Source to Target in the container.
type Mount struct {
	Source, Target    string
	ReadOnly          bool
	RecursiveReadOnly bool
	Propagation       Propagation
}

// Device makes the host's device Source appear as node Target in the container.
type Device struct {
	Source, Target string
}

// Container is all that container-init needs.
type Container struct {
	// Root is an empty directory of the host on which, in the container's mount namespace only, the root is mounted.
	Root     string
	Hostname string

	Args []string
	Env  []string
	Dir  string

	UID, GID     uint32
	Groups       []uint32
	Privileged   bool
	ReadOnlyRoot bool

	Mounts  []Mount
	Devices []Device
}
