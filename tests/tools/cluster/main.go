// kubepeer is the Kubernetes that our tests run against: etcd, the control plane, kubectl and a kubelet, all of them upstream's code, in one
// binary. The applet is the first argument, or the name that the binary is called by.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata"

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var applets = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 runKubectl,
	"kubelet":                 runKubelet,
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, known := applets[name]; !known && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	applet, known := applets[name]
	if !known {
		fmt.Fprintf(os.Stderr, "kubepeer: no applet %q; there are etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kubelet\n", name)
		os.Exit(2)
	}
	os.Exit(applet())
}

func runKubectl() int {
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}
