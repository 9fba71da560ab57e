// descriptors writes, to standard output, the protobuf FileDescriptorSet (serialized, with all imports, which come first) of a gRPC interface
// that we serve: "csi" is the Container Storage Interface, "registration" the kubelet's plugin registration. Our own descriptors are compared with it.
package main

import (
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	files := map[string]protoreflect.FileDescriptor{
		"csi":          csi.File_csi_proto,
		"registration": (&registration.PluginInfo{}).ProtoReflect().Descriptor().ParentFile(),
	}
	if len(os.Args) != 2 || files[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: descriptors csi|registration")
		os.Exit(2)
	}
	set := &descriptorpb.FileDescriptorSet{}
	collect(files[os.Args[1]], map[string]bool{}, set)
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err == nil {
		_, err = os.Stdout.Write(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "descriptors:", err)
		os.Exit(1)
	}
}

func collect(file protoreflect.FileDescriptor, seen map[string]bool, into *descriptorpb.FileDescriptorSet) {
	if seen[file.Path()] {
		return
	}
	seen[file.Path()] = true
	for i := range file.Imports().Len() {
		collect(file.Imports().Get(i).FileDescriptor, seen, into)
	}
	into.File = append(into.File, protodesc.ToFileDescriptorProto(file))
}
