package main

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (r *runtime) CreateContainer(_ context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sandboxes[req.GetPodSandboxId()]
	if !ok {
		return nil, notFound("sandbox", req.GetPodSandboxId())
	}
	c := &containerState{
		id: newID(), sandboxID: s.id, config: req.GetConfig(), hostname: s.config.GetHostname(),
		program:   r.programs.of(imageName(req.GetConfig())),
		createdAt: time.Now(), state: cri.ContainerState_CONTAINER_CREATED, exited: make(chan struct{}),
	}
	c.dir = filepath.Join(r.stateDir, c.id)
	if c.config.GetLogPath() != "" {
		c.logPath = filepath.Join(s.config.GetLogDirectory(), c.config.GetLogPath())
	}
	r.containers[c.id] = c
	return &cri.CreateContainerResponse{ContainerId: c.id}, nil
}

func (r *runtime) container(id string) (*containerState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return nil, notFound("container", id)
	}
	return c, nil
}

// containersOf needs r.mu.
func (r *runtime) containersOf(sandboxID string) []*containerState {
	var found []*containerState
	for _, c := range r.containers {
		if c.sandboxID == sandboxID {
			found = append(found, c)
		}
	}
	return found
}

// forget needs r.mu and a container that runs no more.
func (r *runtime) forget(c *containerState) {
	c.removeDir()
	delete(r.containers, c.id)
}

func (r *runtime) StartContainer(_ context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := c.start(r.initPath); err != nil {
		return nil, status.Errorf(codes.Unknown, "start container: %v", err)
	}
	return &cri.StartContainerResponse{}, nil
}

func (r *runtime) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return &cri.StopContainerResponse{}, nil
	}
	if req.GetTimeout() > 0 {
		c.terminate()
		if c.waitExitOr(ctx, time.Duration(req.GetTimeout())*time.Second) {
			return &cri.StopContainerResponse{}, nil
		}
	}
	c.kill()
	if !c.waitExit(10 * time.Second) {
		return nil, status.Errorf(codes.DeadlineExceeded, "container %s does not die", c.id)
	}
	return &cri.StopContainerResponse{}, nil
}

func (r *runtime) RemoveContainer(_ context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return &cri.RemoveContainerResponse{}, nil
	}
	c.kill()
	if !c.waitExit(10 * time.Second) {
		return nil, status.Errorf(codes.DeadlineExceeded, "container %s does not die", c.id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(c)
	return &cri.RemoveContainerResponse{}, nil
}

func (r *runtime) ListContainers(_ context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	f := req.GetFilter()
	resp := &cri.ListContainersResponse{}
	for _, c := range r.matching(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) {
		st := c.status()
		if f.GetState() != nil && f.GetState().GetState() != st.GetState() {
			continue
		}
		resp.Containers = append(resp.Containers, &cri.Container{
			Id: c.id, PodSandboxId: c.sandboxID, Metadata: st.GetMetadata(), Image: st.GetImage(), ImageRef: st.GetImageRef(), ImageId: st.GetImageId(),
			State: st.GetState(), CreatedAt: st.GetCreatedAt(), Labels: st.GetLabels(), Annotations: st.GetAnnotations(),
		})
	}
	return resp, nil
}

func (r *runtime) matching(id, sandboxID string, labels map[string]string) []*containerState {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*containerState
	for _, c := range r.containers {
		if !otherID(id, c.id) && !otherID(sandboxID, c.sandboxID) && hasLabels(c.config.GetLabels(), labels) {
			found = append(found, c)
		}
	}
	return found
}

func (r *runtime) ContainerStatus(_ context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &cri.ContainerStatusResponse{Status: c.status()}, nil
}

func (r *runtime) UpdateContainerResources(context.Context, *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	return &cri.UpdateContainerResourcesResponse{}, nil
}

func (r *runtime) ReopenContainerLog(_ context.Context, req *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := c.reopenLog(); err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	return &cri.ReopenContainerLogResponse{}, nil
}

// ExecSync enters the container's mount and PID namespaces with util-linux' nsenter(1).
func (r *runtime) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	c, err := r.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	pid, running := c.runningPid()
	if !running {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s does not run", c.id)
	}
	if req.GetTimeout() > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(req.GetTimeout())*time.Second)
		defer cancel()
	}
	args := append([]string{"--target", strconv.Itoa(pid), "--mount", "--pid", "--uts", "--root", "--wd", "--"}, req.GetCmd()...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = c.env()
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if ctx.Err() != nil {
		return nil, status.Errorf(codes.DeadlineExceeded, "command %q timed out", req.GetCmd())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	return &cri.ExecSyncResponse{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: int32(cmd.ProcessState.ExitCode())}, nil
}

// ListContainerStats says which containers run, without measuring them: the kubelet exports the volumes' statistics
// (kubelet_volume_stats_*) only of Pods that appear here.
func (r *runtime) ListContainerStats(_ context.Context, req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	f := req.GetFilter()
	resp := &cri.ListContainerStatsResponse{}
	for _, c := range r.matching(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) {
		if _, running := c.runningPid(); !running {
			continue
		}
		resp.Stats = append(resp.Stats, &cri.ContainerStats{Attributes: &cri.ContainerAttributes{
			Id: c.id, Metadata: c.config.GetMetadata(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		}})
	}
	return resp, nil
}
