package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubepeer/spec"
)

const (
	startTimeout = 20 * time.Second
	// startFailed is the exit code that containerd gives a container whose command could not be started.
	startFailed = 128
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// containerState is one container and, once it was started, its process: container-init, the PID 1 of the container.
type containerState struct {
	id, sandboxID, hostname string
	dir, logPath, program   string
	config                  *cri.ContainerConfig
	createdAt               time.Time
	exited                  chan struct{}

	mu                    sync.Mutex
	state                 cri.ContainerState
	startedAt, finishedAt time.Time
	exitCode              int32
	reason, message       string
	process               *exec.Cmd
	lifeline              *os.File
	log                   *criLog
}

// containerInit is the path of the second binary, which lies beside this one.
func containerInit() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), "container-init")
	_, err = os.Stat(path)
	return path, err
}

func (c *containerState) start(initPath string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != cri.ContainerState_CONTAINER_CREATED {
		return fmt.Errorf("container is %s", c.state)
	}
	err := c.launch(initPath)
	if err != nil {
		c.end(startFailed, "StartError", err.Error())
		return err
	}
	c.state, c.startedAt = cri.ContainerState_CONTAINER_RUNNING, time.Now()
	go c.watch()
	return nil
}

// launch starts container-init and waits until it has started the command.
func (c *containerState) launch(initPath string) error {
	description, err := c.spec()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if c.log, err = openLog(c.logPath); err != nil {
		return err
	}
	specRead, specWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	statusRead, statusWrite, err := os.Pipe()
	if err != nil {
		return errors.Join(err, specRead.Close(), specWrite.Close())
	}
	defer statusRead.Close()
	cmd := exec.Command(initPath)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = c.log.stream("stdout"), c.log.stream("stderr")
	cmd.ExtraFiles = []*os.File{specRead, statusWrite} // spec.SpecFD, spec.StatusFD
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS,
		Setsid:     true,
	}
	err = cmd.Start()
	specRead.Close()
	statusWrite.Close()
	if err == nil {
		if err = handOver(description, specWrite, statusRead); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	if err != nil {
		specWrite.Close()
		return err
	}
	c.process, c.lifeline = cmd, specWrite
	return nil
}

func handOver(description spec.Container, to, status *os.File) error {
	if err := status.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	if err := json.NewEncoder(to).Encode(description); err != nil {
		return err
	}
	failure, err := io.ReadAll(status)
	if err != nil {
		return err
	}
	if len(failure) > 0 {
		return errors.New(string(failure))
	}
	return nil
}

// watch waits for the end of the process, which takes all others of its PID namespace with it.
func (c *containerState) watch() {
	_ = c.process.Wait()
	code := int32(c.process.ProcessState.ExitCode())
	if ws, ok := c.process.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int32(ws.Signal())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	c.lifeline.Close()
	c.end(code, reason, "")
}

// end needs c.mu.
func (c *containerState) end(code int32, reason, message string) {
	c.state, c.finishedAt = cri.ContainerState_CONTAINER_EXITED, time.Now()
	if c.startedAt.IsZero() {
		c.startedAt = c.finishedAt
	}
	c.exitCode, c.reason, c.message = code, reason, message
	if c.log != nil {
		c.log.close()
	}
	close(c.exited)
}

func (c *containerState) signal(s os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == cri.ContainerState_CONTAINER_RUNNING {
		_ = c.process.Process.Signal(s)
	}
}

func (c *containerState) kill() { c.signal(unix.SIGKILL) }

func (c *containerState) terminate() {
	s := unix.SignalNum(c.config.GetStopSignal().String())
	if s == 0 {
		s = unix.SIGTERM
	}
	c.signal(s)
}

func (c *containerState) runningPid() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != cri.ContainerState_CONTAINER_RUNNING {
		return 0, false
	}
	return c.process.Process.Pid, true
}

func (c *containerState) waitExit(limit time.Duration) bool {
	return c.waitExitOr(context.Background(), limit)
}

// waitExitOr says whether the container doesn't run within limit; one that was never started doesn't.
func (c *containerState) waitExitOr(ctx context.Context, limit time.Duration) bool {
	if _, running := c.runningPid(); !running {
		return true
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.exited:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// removeDir doesn't recurse: on the host the directory is empty, the container's root was mounted on it in another namespace.
func (c *containerState) removeDir() { _ = os.Remove(c.dir) }

func (c *containerState) reopenLog() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == nil {
		return errors.New("container has no log")
	}
	return c.log.reopen()
}

func (c *containerState) status() *cri.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := imageName(c.config)
	st := &cri.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.state, CreatedAt: c.createdAt.UnixNano(),
		Image: &cri.ImageSpec{Image: name}, ImageRef: imageID(name), ImageId: imageID(name),
		Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		Mounts: c.config.GetMounts(), LogPath: c.logPath, StopSignal: c.config.GetStopSignal(),
	}
	if !c.startedAt.IsZero() {
		st.StartedAt = c.startedAt.UnixNano()
	}
	if c.state == cri.ContainerState_CONTAINER_EXITED {
		st.FinishedAt, st.ExitCode, st.Reason, st.Message = c.finishedAt.UnixNano(), c.exitCode, c.reason, c.message
	}
	return st
}

// env is the container's environment with what a runtime adds of its own. No name is there twice: programs disagree on which one counts.
func (c *containerState) env() []string {
	var env []string
	given := map[string]bool{}
	for _, e := range c.config.GetEnvs() {
		given[e.GetKey()] = true
		env = append(env, e.GetKey()+"="+string(e.GetValue()))
	}
	for _, d := range [][2]string{{"PATH", defaultPath}, {"HOME", "/root"}, {"HOSTNAME", c.hostname}} {
		if !given[d[0]] {
			env = append(env, d[0]+"="+d[1])
		}
	}
	return env
}

func (c *containerState) spec() (spec.Container, error) {
	security := c.config.GetLinux().GetSecurityContext()
	s := spec.Container{
		Root: c.dir, Hostname: c.hostname,
		Args: append(append([]string{}, c.config.GetCommand()...), c.config.GetArgs()...), Env: c.env(), Dir: c.config.GetWorkingDir(),
		UID: uint32(security.GetRunAsUser().GetValue()), GID: uint32(security.GetRunAsGroup().GetValue()),
		Privileged: security.GetPrivileged(), ReadOnlyRoot: security.GetReadonlyRootfs(),
	}
	if c.program != "" {
		inside := filepath.Join("/", filepath.Base(c.program))
		s.Mounts = append(s.Mounts, spec.Mount{Source: c.program, Target: inside, ReadOnly: true, Propagation: spec.Private})
		if len(c.config.GetCommand()) == 0 {
			s.Args = append([]string{inside}, s.Args...)
		}
	}
	if len(s.Args) == 0 {
		return s, fmt.Errorf("no command, and no --image %s=FILE to run in its place", imageName(c.config))
	}
	for _, g := range security.GetSupplementalGroups() {
		s.Groups = append(s.Groups, uint32(g))
	}
	for _, m := range c.config.GetMounts() {
		mount, err := mountSpec(m)
		if err != nil {
			return s, err
		}
		s.Mounts = append(s.Mounts, mount)
	}
	for _, d := range c.config.GetDevices() {
		s.Devices = append(s.Devices, spec.Device{Source: d.GetHostPath(), Target: d.GetContainerPath()})
	}
	return s, nil
}

func mountSpec(m *cri.Mount) (spec.Mount, error) {
	if m.GetHostPath() == "" {
		return spec.Mount{}, fmt.Errorf("mount of an image at %s is not implemented", m.GetContainerPath())
	}
	// A hostPath volume without a type may be missing; containerd makes a directory of it.
	if _, err := os.Stat(m.GetHostPath()); os.IsNotExist(err) {
		if err := os.MkdirAll(m.GetHostPath(), 0o755); err != nil {
			return spec.Mount{}, err
		}
	}
	propagation := map[cri.MountPropagation]spec.Propagation{
		cri.MountPropagation_PROPAGATION_PRIVATE:           spec.Private,
		cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER: spec.HostToContainer,
		cri.MountPropagation_PROPAGATION_BIDIRECTIONAL:     spec.Bidirectional,
	}[m.GetPropagation()]
	return spec.Mount{
		Source: m.GetHostPath(), Target: filepath.Join("/", m.GetContainerPath()),
		ReadOnly: m.GetReadonly(), RecursiveReadOnly: m.GetRecursiveReadOnly(), Propagation: propagation,
	}, nil
}
