package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podIP is the address of every Pod: they all use the host's network.
const podIP = "127.0.0.1"

// runtime is a CRI runtime without images and networks. A sandbox is a record; a container is a process of this machine with a mount namespace of
// its own, so that what the command sees of its volumes is the kernel's doing. What it doesn't know of, it refuses as unimplemented.
type runtime struct {
	cri.UnimplementedRuntimeServiceServer

	stateDir string
	initPath string
	programs programs
	server   *grpc.Server

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*containerState
}

type sandbox struct {
	id        string
	config    *cri.PodSandboxConfig
	createdAt time.Time
	state     cri.PodSandboxState
}

func startRuntime(socket, stateDir string, entryPoints programs) (*runtime, error) {
	initPath, err := containerInit()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, err
	}
	if err := removeStale(stateDir); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	r := &runtime{
		stateDir: stateDir, initPath: initPath, programs: entryPoints, server: grpc.NewServer(),
		sandboxes: map[string]*sandbox{}, containers: map[string]*containerState{},
	}
	cri.RegisterRuntimeServiceServer(r.server, r)
	cri.RegisterImageServiceServer(r.server, &images{known: map[string]bool{}, dir: stateDir})
	go func() { _ = r.server.Serve(listener) }()
	return r, nil
}

// removeStale removes what a kubelet left that was killed: empty directories, its containers' mounts went with them.
func removeStale(stateDir string) error {
	entries, err := os.ReadDir(stateDir)
	for _, e := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(stateDir, e.Name())))
	}
	return err
}

// shutdown kills what still runs and waits until it is gone.
func (r *runtime) shutdown() {
	r.server.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		c.kill()
	}
	for _, c := range r.containers {
		c.waitExit(10 * time.Second)
		c.removeDir()
	}
}

func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand
	return hex.EncodeToString(b)
}

func notFound(kind, id string) error {
	return status.Error(codes.NotFound, fmt.Sprintf("no %s %q", kind, id))
}

func (r *runtime) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{Version: "0.1.0", RuntimeName: "kubepeer", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}, nil
}

func (r *runtime) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true},
		{Type: cri.NetworkReady, Status: true},
	}}}, nil
}

func (r *runtime) UpdateRuntimeConfig(context.Context, *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}

func (r *runtime) RuntimeConfig(context.Context, *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: cri.CgroupDriver_CGROUPFS}}, nil
}

func (r *runtime) RunPodSandbox(_ context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	s := &sandbox{id: newID(), config: req.GetConfig(), createdAt: time.Now(), state: cri.PodSandboxState_SANDBOX_READY}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes[s.id] = s
	return &cri.RunPodSandboxResponse{PodSandboxId: s.id}, nil
}

// StopPodSandbox kills the containers that the kubelet left: it must succeed for a sandbox that is gone (api.proto).
func (r *runtime) StopPodSandbox(_ context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	r.mu.Lock()
	s := r.sandboxes[req.GetPodSandboxId()]
	if s != nil {
		s.state = cri.PodSandboxState_SANDBOX_NOTREADY
	}
	left := r.containersOf(req.GetPodSandboxId())
	r.mu.Unlock()
	for _, c := range left {
		c.kill()
		if !c.waitExit(10 * time.Second) {
			return nil, status.Errorf(codes.DeadlineExceeded, "container %s does not die", c.id)
		}
	}
	return &cri.StopPodSandboxResponse{}, nil
}

func (r *runtime) RemovePodSandbox(ctx context.Context, req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	if _, err := r.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: req.GetPodSandboxId()}); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containersOf(req.GetPodSandboxId()) {
		r.forget(c)
	}
	delete(r.sandboxes, req.GetPodSandboxId())
	return &cri.RemovePodSandboxResponse{}, nil
}

func (r *runtime) PodSandboxStatus(_ context.Context, req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sandboxes[req.GetPodSandboxId()]
	if !ok {
		return nil, notFound("sandbox", req.GetPodSandboxId())
	}
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{
		Id:        s.id,
		Metadata:  s.config.GetMetadata(),
		State:     s.state,
		CreatedAt: s.createdAt.UnixNano(),
		Network:   &cri.PodSandboxNetworkStatus{Ip: podIP},
		Linux: &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{
			Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels:      s.config.GetLabels(),
		Annotations: s.config.GetAnnotations(),
	}}, nil
}

func (r *runtime) ListPodSandbox(_ context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := req.GetFilter()
	resp := &cri.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		wrongState := f.GetState() != nil && f.GetState().GetState() != s.state
		if otherID(f.GetId(), s.id) || wrongState || !hasLabels(s.config.GetLabels(), f.GetLabelSelector()) {
			continue
		}
		resp.Items = append(resp.Items, &cri.PodSandbox{
			Id: s.id, Metadata: s.config.GetMetadata(), State: s.state, CreatedAt: s.createdAt.UnixNano(),
			Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(),
		})
	}
	return resp, nil
}

func otherID(wanted, id string) bool { return wanted != "" && wanted != id }

func hasLabels(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// ListPodSandboxStats is empty: what a Pod uses isn't measured.
func (r *runtime) ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	return &cri.ListPodSandboxStatsResponse{}, nil
}

func (r *runtime) UpdatePodSandboxResources(context.Context, *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}
