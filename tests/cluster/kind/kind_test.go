package kind

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/defaults"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
)

// The address of DNS in the test cluster, and those of its pods: see xtask/src/cluster/components.rs. One of the
// latter is in tests/cluster/berth, which opens the scripted model's port there.
const (
	dnsService = "198.18.128.10"
	pods       = "198.18.0.0/24"
)

// config reads the configuration as kind does: what it does not know is an error.
func config(t *testing.T) v1alpha4.Cluster {
	t.Helper()
	text, err := os.ReadFile("kind-config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cluster v1alpha4.Cluster
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&cluster); err != nil {
		t.Fatal(err)
	}
	v1alpha4.SetDefaultsCluster(&cluster)
	return cluster
}

func TestTheConfigurationIsOfOneNodeWithItsOwnNetwork(t *testing.T) {
	cluster := config(t)
	if cluster.Kind != "Cluster" || cluster.APIVersion != "kind.x-k8s.io/v1alpha4" {
		t.Errorf("it is a %s of %s", cluster.Kind, cluster.APIVersion)
	}
	if len(cluster.Nodes) != 1 || cluster.Nodes[0].Role != v1alpha4.ControlPlaneRole {
		t.Errorf("its nodes are %+v", cluster.Nodes)
	}
	// Another network may not enforce policies.
	if cluster.Networking.DisableDefaultCNI {
		t.Error("kindnet is left out")
	}
}

func TestAddressesAreThoseOfTheTestCluster(t *testing.T) {
	networking := config(t).Networking
	services := netip.MustParsePrefix(networking.ServiceSubnet)
	// The tenth address is that of DNS.
	address := services.Addr()
	for range 10 {
		address = address.Next()
	}
	if address.String() != dnsService {
		t.Errorf("DNS is at %s", address)
	}
	// The first node has the first 256 addresses.
	subnet := netip.MustParsePrefix(networking.PodSubnet)
	first := netip.PrefixFrom(subnet.Addr(), 24)
	if first.String() != pods {
		t.Errorf("pods are in %s", first)
	}
	if subnet.Overlaps(services) {
		t.Errorf("%s and %s overlap", subnet, services)
	}
}

func TestImagesAreOfTheReleaseOfKindThatIsUsed(t *testing.T) {
	text, err := os.ReadFile("images.txt")
	if err != nil {
		t.Fatal(err)
	}
	workflow, err := os.ReadFile("../../../.github/workflows/kind.yml")
	if err != nil {
		t.Fatal(err)
	}
	var images []string
	for line := range strings.Lines(string(text)) {
		version, image, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found || !strings.HasPrefix(image, "kindest/node:v"+version+"@sha256:") {
			t.Errorf("no version with its image: %q", line)
		}
		if !strings.Contains(string(workflow), `"`+version+`"`) {
			t.Errorf("the workflow does not run with %s", version)
		}
		images = append(images, image)
	}
	// A release has one list, which ends with its default: another release's images are not in it.
	if last := images[len(images)-1]; last != defaults.Image {
		t.Errorf("%s is not the default, %s", last, defaults.Image)
	}
}
