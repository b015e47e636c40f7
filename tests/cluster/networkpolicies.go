package main

import (
	"context"
	"flag"
	"net/http"
	"os/signal"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/informers"
	"k8s.io/component-base/logs"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

// enforceNetworkPolicies judges each packet that the node's rules put into a netfilter queue.
//
// This is what the main function of kube-network-policies does, but with a kubeconfig, as the node's other programs
// have, and without admin policies.
func enforceNetworkPolicies() error {
	kubeconfig := flag.String("kubeconfig", "", "credentials for the apiserver")
	node := flag.String("node", "", "name of this node")
	queue := flag.Int("queue", 100, "number of the netfilter queue")
	metrics := flag.String("metrics-bind-address", "127.0.0.1:9080", "where metrics are served")
	flag.Parse()
	logs.InitLogs()
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()

	client, err := clientOf(*kubeconfig)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(
		client,
		factory.Networking().V1().NetworkPolicies(),
		factory.Core().V1().Namespaces(),
		factory.Core().V1().Pods(),
		nil, nil, nil, nil,
		// Not NRIdisabled: version 0.8.0 then calls what it has not made. Without NRI it says so once in its log.
		networkpolicy.Config{QueueID: *queue, NodeName: *node},
	)
	if err != nil {
		return err
	}
	http.Handle("/metrics", promhttp.Handler())
	failed := make(chan error, 2)
	go func() { failed <- http.ListenAndServe(*metrics, nil) }()
	go func() { failed <- controller.Run(ctx) }()
	factory.Start(ctx.Done())
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}
