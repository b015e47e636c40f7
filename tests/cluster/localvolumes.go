package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/logs"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// localVolumes makes a directory of the node into a volume for each claim, and deletes it with the volume.
//
// The volumes are of the type `local`, not `hostPath`: the kubelet gives them the pod's group. Their size is not
// enforced.
type localVolumes struct {
	// root holds one directory for each volume.
	root string
}

func (v localVolumes) Provision(
	_ context.Context, options controller.ProvisionOptions,
) (*core.PersistentVolume, controller.ProvisioningState, error) {
	if options.SelectedNodeName == "" {
		return nil, controller.ProvisioningFinished, fmt.Errorf("the class does not wait for the first consumer")
	}
	path := filepath.Join(v.root, options.PVName)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	volume := &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: options.PVName},
		Spec: core.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			Capacity: core.ResourceList{
				core.ResourceStorage: options.PVC.Spec.Resources.Requests[core.ResourceStorage],
			},
			PersistentVolumeSource: core.PersistentVolumeSource{Local: &core.LocalVolumeSource{Path: path}},
			NodeAffinity: &core.VolumeNodeAffinity{Required: &core.NodeSelector{
				NodeSelectorTerms: []core.NodeSelectorTerm{{
					MatchExpressions: []core.NodeSelectorRequirement{{
						Key:      core.LabelHostname,
						Operator: core.NodeSelectorOpIn,
						Values:   []string{options.SelectedNodeName},
					}},
				}},
			}},
		},
	}
	return volume, controller.ProvisioningFinished, nil
}

func (v localVolumes) Delete(_ context.Context, volume *core.PersistentVolume) error {
	return os.RemoveAll(filepath.Join(v.root, volume.Name))
}

func provisionLocalVolumes() error {
	kubeconfig := flag.String("kubeconfig", "", "credentials for the apiserver")
	name := flag.String("provisioner", "", "name by which storage classes call for this")
	root := flag.String("root", "", "directory for the volumes")
	flag.Parse()
	logs.InitLogs()
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()

	client, err := clientOf(*kubeconfig)
	if err != nil {
		return err
	}
	provisioner := controller.NewProvisionController(
		ctx, client, *name, localVolumes{root: *root}, controller.LeaderElection(false),
	)
	provisioner.Run(ctx)
	return nil
}
