// container-init is PID 1 of a container of kubepeer's runtime: it builds the root file system in its new mount namespace, starts the command in
// it, reaps, passes signals on and ends with the command's exit code, or at once when the runtime is gone. It is a binary of its own because
// kubepeer would take 100 MB for each container.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kubepeer/spec"
)

func main() {
	unix.Umask(0o022)
	unix.CloseOnExec(spec.SpecFD)
	unix.CloseOnExec(spec.StatusFD)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	lifeline := os.NewFile(spec.SpecFD, "spec")
	status := os.NewFile(spec.StatusFD, "status")

	pid, err := launch(lifeline)
	if err != nil {
		fmt.Fprint(status, err)
		os.Exit(1)
	}
	status.Close()
	go endWith(lifeline)
	go forward(signals, pid)
	os.Exit(reap(pid))
}

func launch(from io.Reader) (int, error) {
	var c spec.Container
	if err := json.NewDecoder(from).Decode(&c); err != nil {
		return 0, fmt.Errorf("read spec: %w", err)
	}
	if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
		return 0, fmt.Errorf("set host name: %w", err)
	}
	if err := enterRoot(&c); err != nil {
		return 0, err
	}
	if c.Dir == "" {
		c.Dir = "/"
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return 0, fmt.Errorf("working directory: %w", err)
	}
	return startCommand(&c)
}

func startCommand(c *spec.Container) (int, error) {
	for _, e := range c.Env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			os.Setenv("PATH", path)
		}
	}
	path, err := exec.LookPath(c.Args[0])
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(path, c.Args, &syscall.ProcAttr{
		Dir:   c.Dir,
		Env:   c.Env,
		Files: []uintptr{null.Fd(), os.Stdout.Fd(), os.Stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: c.UID, Gid: c.GID, Groups: c.Groups}},
	})
	if err != nil {
		return 0, fmt.Errorf("exec %s: %w", path, err)
	}
	return pid, nil
}

// endWith takes the container down when the runtime's end of the pipe closes, however the runtime ended.
func endWith(lifeline io.Reader) {
	_, _ = io.Copy(io.Discard, lifeline)
	os.Exit(128 + int(unix.SIGKILL))
}

func forward(signals <-chan os.Signal, pid int) {
	for s := range signals {
		if n, ok := s.(syscall.Signal); ok && n != unix.SIGCHLD && n != unix.SIGURG {
			_ = unix.Kill(pid, n)
		}
	}
}

// reap returns the exit code of pid as a shell would. The kernel kills what is left of the namespace when PID 1 ends (pid_namespaces(7)).
func reap(pid int) int {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1
		case got == pid && ws.Signaled():
			return 128 + int(ws.Signal())
		case got == pid:
			return ws.ExitStatus()
		}
	}
}
