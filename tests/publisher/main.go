// Command publisher is a driver that knows nothing of sharing affinity: it publishes its devices and serves the
// kubelet through the official Go helper library, which picks pool, generation and count of the ResourceSlices by
// itself. The metadata sidecar is tested beside it.
//
// Each line on standard input is the pool's wanted content, a JSON list of slices that are lists of v1 devices; each is
// answered with a line once the library has taken it. A claim is prepared without CDI devices. It ends with its input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

type plugin struct{ driver string }

func (p plugin) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var result kubeletplugin.PrepareResult
		for _, allocated := range claim.Status.Allocation.Devices.Results {
			if allocated.Driver == p.driver {
				result.Devices = append(result.Devices, kubeletplugin.Device{
					Requests: []string{allocated.Request}, PoolName: allocated.Pool,
					DeviceName: allocated.Device, ShareID: allocated.ShareID,
				})
			}
		}
		prepared[claim.UID] = result
	}
	return prepared, nil
}

func (p plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	undone := map[types.UID]error{}
	for _, claim := range claims {
		undone[claim.UID] = nil
	}
	return undone, nil
}

func (p plugin) HandleError(_ context.Context, err error, msg string) {
	fmt.Fprintln(os.Stderr, msg+":", err)
}

func (p plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func run() error {
	driver := flag.String("driver", "", "name of the driver")
	node := flag.String("node", "", "name of the node, and of the pool")
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	root := flag.String("kubelet-root", "/var/lib/kubelet", "the kubelet's folder")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(*root, "plugins", *driver)
	registry := filepath.Join(*root, "plugins_registry")
	for _, folder := range []string{data, registry} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	helper, err := kubeletplugin.Start(ctx, plugin{*driver},
		kubeletplugin.DriverName(*driver), kubeletplugin.NodeName(*node), kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(registry),
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()

	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var slices [][]resourceapi.Device
		if err := json.Unmarshal(lines.Bytes(), &slices); err != nil {
			return err
		}
		var pool resourceslice.Pool
		for _, devices := range slices {
			pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: devices})
		}
		resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{*node: pool}}
		if err := helper.PublishResources(ctx, resources); err != nil {
			return err
		}
		fmt.Println("taken")
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
