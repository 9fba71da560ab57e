package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// programs are the images that stand for a program of this machine.
type programs map[string]string

func (p programs) String() string { return "" }

// Set takes a flag's IMAGE=FILE. IMAGE has no tag: it stands for all of them.
func (p programs) Set(value string) error {
	name, file, ok := strings.Cut(value, "=")
	if !ok || name == "" || !filepath.IsAbs(file) {
		return errors.New("want IMAGE=FILE with an absolute FILE")
	}
	p[name] = file
	return nil
}

func (p programs) of(reference string) string {
	name, _, _ := strings.Cut(reference, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	return p[name]
}

// images is a store in which every image is present: a container's command comes from the machine's own root file system.
type images struct {
	cri.UnimplementedImageServiceServer

	dir string

	mu    sync.Mutex
	known map[string]bool
}

func imageID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// imageName is what the Pod asked for; the kubelet asks the runtime for the ID that it found for it.
func imageName(c *cri.ContainerConfig) string {
	if name := c.GetImage().GetUserSpecifiedImage(); name != "" {
		return name
	}
	return c.GetImage().GetImage()
}

func image(name string) *cri.Image {
	return &cri.Image{Id: imageID(name), RepoTags: []string{name}, Size: 1, Spec: &cri.ImageSpec{Image: name}}
}

func (i *images) remember(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.known[name] = true
}

func (i *images) ImageStatus(_ context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	i.remember(req.GetImage().GetImage())
	return &cri.ImageStatusResponse{Image: image(req.GetImage().GetImage())}, nil
}

func (i *images) PullImage(_ context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	i.remember(req.GetImage().GetImage())
	return &cri.PullImageResponse{ImageRef: imageID(req.GetImage().GetImage())}, nil
}

func (i *images) ListImages(context.Context, *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	resp := &cri.ListImagesResponse{}
	for name := range i.known {
		resp.Images = append(resp.Images, image(name))
	}
	return resp, nil
}

func (i *images) RemoveImage(_ context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.known, req.GetImage().GetImage())
	return &cri.RemoveImageResponse{}, nil
}

func (i *images) ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(i.dir, &fs); err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	usage := []*cri.FilesystemUsage{{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &cri.FilesystemIdentifier{Mountpoint: i.dir},
		UsedBytes:  &cri.UInt64Value{Value: (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)},
		InodesUsed: &cri.UInt64Value{Value: fs.Files - fs.Ffree},
	}}
	return &cri.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}
