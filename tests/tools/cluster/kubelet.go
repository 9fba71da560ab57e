package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	criclient "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/util/oom"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

const criTimeout = 15 * time.Second

type nodeOptions struct {
	kubeconfig, name, root            string
	cloudProvider, providerID, nodeIP string
	systemUUID, bootID                string
	port                              int
	programs                          programs
}

func parseNodeOptions(args []string) (nodeOptions, error) {
	o := nodeOptions{programs: programs{}}
	fs := flag.NewFlagSet("kubelet", flag.ContinueOnError)
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of system:node:NAME")
	fs.StringVar(&o.name, "hostname-override", "", "name of the Node")
	fs.StringVar(&o.root, "root-dir", "", "absolute path; sockets live below it, so keep it short")
	fs.StringVar(&o.cloudProvider, "cloud-provider", "", "\"external\": a cloud controller manager initializes the Node")
	fs.StringVar(&o.providerID, "provider-id", "", "spec.providerID of the Node")
	fs.StringVar(&o.nodeIP, "node-ip", "", "address of an interface of this machine, not a loopback one")
	fs.StringVar(&o.systemUUID, "system-uuid", "", "status.nodeInfo.systemUUID (and machineID) of the Node")
	fs.StringVar(&o.bootID, "boot-id", "", "status.nodeInfo.bootID of the Node")
	fs.IntVar(&o.port, "port", 0, "port of the kubelet's server on 127.0.0.1, plain HTTP without authentication; 0: none")
	fs.Var(o.programs, "image", "IMAGE=FILE: what the image's entry point is, a program of this machine that the container has at /NAME; repeatable")
	klog.InitFlags(fs)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.kubeconfig == "" || o.name == "" || !filepath.IsAbs(o.root) {
		return o, errors.New("--kubeconfig, --hostname-override and an absolute --root-dir are needed")
	}
	return o, nil
}

func runKubelet() int {
	o, err := parseNodeOptions(os.Args[1:])
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		err = serveNode(ctx, o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kubelet: %v\n", err)
		return 1
	}
	return 0
}

// serveNode runs the kubelet and its runtime until ctx ends, then kills the containers. Mounts below the root directory stay, as with any kubelet.
func serveNode(ctx context.Context, o nodeOptions) error {
	unix.Umask(0o022) // The kubelet makes directories for containers with other users.
	for _, d := range []string{o.root, o.podLogs(), o.staticPods(), o.containerLogs()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	runtime, err := startRuntime(filepath.Join(o.root, "cri.sock"), filepath.Join(o.root, "containers"), o.programs)
	if err != nil {
		return err
	}
	defer runtime.shutdown()

	server, err := kubeletConfig(o)
	if err != nil {
		return err
	}
	deps, err := dependencies(ctx, o, server.ContainerRuntimeEndpoint)
	if err != nil {
		return err
	}
	// The pods' log symlinks belong to the machine's own kubelet, if it has one: /var/log/containers is not ours.
	kubelet.ContainerLogsDir = o.containerLogs()
	if err := app.RunKubelet(ctx, server, deps); err != nil {
		return fmt.Errorf("run kubelet: %w", err)
	}
	<-ctx.Done()
	return nil
}

func (o nodeOptions) podLogs() string       { return filepath.Join(o.root, "pod-logs") }
func (o nodeOptions) staticPods() string    { return filepath.Join(o.root, "static-pods") }
func (o nodeOptions) containerLogs() string { return filepath.Join(o.root, "container-logs") }

func kubeletConfig(o nodeOptions) (*options.KubeletServer, error) {
	f := options.NewKubeletFlags()
	f.RootDirectory = o.root
	f.HostnameOverride = o.name
	f.NodeIP = o.nodeIP
	f.CloudProvider = o.cloudProvider
	f.MinimumGCAge = metav1.Duration{Duration: time.Minute}
	f.MaxContainerCount = 100
	f.MaxPerPodContainerCount = 2

	c, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	c.ContainerRuntimeEndpoint = "unix://" + filepath.Join(o.root, "cri.sock")
	c.ImageServiceEndpoint = c.ContainerRuntimeEndpoint
	c.EnableServer = o.port != 0
	c.Address = "127.0.0.1"
	c.Port = int32(o.port)
	c.ReadOnlyPort = 0
	c.HealthzPort = 0
	c.StaticPodPath = o.staticPods()
	c.PodLogsDir = o.podLogs()
	c.ProviderID = o.providerID
	c.RegisterNode = true
	c.EnableControllerAttachDetach = true
	c.NodeStatusUpdateFrequency.Duration = 5 * time.Second
	c.SyncFrequency.Duration = 5 * time.Second
	// Renewed every quarter of it, so that a test may take a Node for lost within seconds.
	c.NodeLeaseDurationSeconds = 8
	c.VolumeStatsAggPeriod.Duration = 10 * time.Second
	c.MaxPods = 110
	// No cgroups: the containers are plain processes, and the machine's own limits hold. Nothing is evicted.
	c.CgroupRoot = ""
	c.CgroupsPerQOS = false
	c.EnforceNodeAllocatable = nil
	c.FailCgroupV1 = false
	c.LocalStorageCapacityIsolation = false
	c.EvictionHard = map[string]string{}
	c.ShutdownGracePeriod.Duration = 0
	c.ResolverConfig = ""
	return &options.KubeletServer{KubeletFlags: *f, KubeletConfiguration: *c}, nil
}

func dependencies(ctx context.Context, o nodeOptions, criEndpoint string) (*kubelet.Dependencies, error) {
	client, heartbeat, err := clients(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	tracer := nooptrace.NewTracerProvider()
	runtime, err := criclient.NewRemoteRuntimeService(ctx, criEndpoint, criTimeout, tracer, false)
	if err != nil {
		return nil, err
	}
	images, err := criclient.NewRemoteImageService(ctx, criEndpoint, criTimeout, tracer, false)
	if err != nil {
		return nil, err
	}
	plugins, err := app.ProbeVolumePlugins(ctx, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	// Without systemd: no scope unit per mount on a machine whose systemd knows nothing of this kubelet.
	mounter := mount.NewWithoutSystemd("")
	return &kubelet.Dependencies{
		KubeClient:                client,
		HeartbeatClient:           heartbeat,
		EventClient:               client.CoreV1(),
		RemoteRuntimeService:      runtime,
		RemoteImageService:        images,
		CAdvisorInterface:         newMachine(o),
		OSInterface:               rerootedOS{logs: o.containerLogs()},
		ContainerManager:          cm.NewStubContainerManager(),
		VolumePlugins:             plugins,
		OOMAdjuster:               oom.NewFakeOOMAdjuster(),
		Mounter:                   mounter,
		Subpather:                 subpath.New(mounter),
		HostUtil:                  hostutil.NewHostUtil(),
		PodStartupLatencyTracker:  kubeletutil.NewPodStartupLatencyTracker(),
		NodeStartupLatencyTracker: kubeletutil.NewNodeStartupLatencyTracker(),
		TracerProvider:            tracer,
		Recorder:                  events.NewRecorder(legacyscheme.Scheme, v1.EventSource{Component: "kubelet", Host: o.name}),
	}, nil
}

func clients(kubeconfig string) (client, heartbeat *kubernetes.Clientset, err error) {
	rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	rc.UserAgent = "kubelet"
	rc.QPS, rc.Burst = 200, 400
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	if client, err = kubernetes.NewForConfig(rc); err != nil {
		return nil, nil, err
	}
	rc.QPS = -1
	rc.Timeout = 10 * time.Second
	heartbeat, err = kubernetes.NewForConfig(rc)
	return client, heartbeat, err
}
