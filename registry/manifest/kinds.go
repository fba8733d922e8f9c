package manifest

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	extensions "istio.io/api/extensions/v1alpha1"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// newSpec is an empty specification of the kind. All versions of a kind have
// the same message.
func newSpec(kind mesh.Kind) proto.Message {
	switch kind {
	case mesh.KindAuthorizationPolicy:
		return &security.AuthorizationPolicy{}
	case mesh.KindDestinationRule:
		return &networking.DestinationRule{}
	case mesh.KindEnvoyFilter:
		return &networking.EnvoyFilter{}
	case mesh.KindGateway:
		return &networking.Gateway{}
	case mesh.KindPeerAuthentication:
		return &security.PeerAuthentication{}
	case mesh.KindProxyConfig:
		return &networkingbeta.ProxyConfig{}
	case mesh.KindRequestAuthentication:
		return &security.RequestAuthentication{}
	case mesh.KindServiceEntry:
		return &networking.ServiceEntry{}
	case mesh.KindSidecar:
		return &networking.Sidecar{}
	case mesh.KindTelemetry:
		return &telemetry.Telemetry{}
	case mesh.KindTrafficExtension:
		return &extensions.TrafficExtension{}
	case mesh.KindVirtualService:
		return &networking.VirtualService{}
	case mesh.KindWasmPlugin:
		return &extensions.WasmPlugin{}
	case mesh.KindWorkloadEntry:
		return &networking.WorkloadEntry{}
	case mesh.KindWorkloadGroup:
		return &networking.WorkloadGroup{}
	case mesh.KindMeshConfig, mesh.KindMeshNetworks:
		return nil
	default:
		return nil
	}
}

// NewSpec is an empty specification of the kind, the settings of the mesh among them;
// nil if there is no such kind.
func NewSpec(kind mesh.Kind) proto.Message {
	if kind == mesh.KindMeshConfig {
		return &meshconfig.MeshConfig{}
	}
	return newSpec(kind)
}

// identify finds which kind a document is of, or says why none. foreign means that it is clearly
// an object of another project.
func identify(set *schema.Set, root *tree.Node, r *reporter) (gvk schema.GVK, known, foreign bool) {
	apiVersion, okVersion := text(root, "apiVersion", r)
	kind, okKind := text(root, "kind", r)
	r.key.Kind = mesh.Kind(kind)
	if !okVersion || !okKind {
		return schema.GVK{}, false, false
	}
	group, version, _ := strings.Cut(apiVersion, "/")
	gvk = schema.GVK{Group: group, Version: version, Kind: kind}
	if set.Lookup(gvk) != nil {
		return gvk, true, false
	}
	var groups, kinds, versions []string
	for _, known := range set.Kinds() {
		groups = append(groups, known.Group)
		kinds = append(kinds, known.Kind)
		if known.Kind == kind {
			versions = append(versions, known.APIVersion())
		}
	}
	if project := otherProject(group, slices.Contains(groups, group)); project != "" {
		hint := ""
		if len(versions) > 0 {
			hint = fmt.Sprintf("; Istio's own %s is of apiVersion %s", kind, versions[0])
		}
		r.add(CodeKind, root.Nearest("apiVersion"), "apiVersion", fmt.Sprintf("%s of %s is an object of %s, which is not read here%s; only Istio's kinds are", kind, apiVersion, project, hint))
		return gvk, false, len(versions) == 0 || group == "gateway.networking.k8s.io"
	}
	if len(versions) > 0 {
		r.add(CodeKind, root.Nearest("apiVersion"), "apiVersion", fmt.Sprintf("%s has no version %q; write one of %s", kind, apiVersion, strings.Join(versions, ", ")))
		return gvk, false, false
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	hint := "only Istio's kinds are read here, such as VirtualService; docs/reference-fields.md lists them"
	foreign = strings.Contains(group, ".") && version != "" && !strings.Contains(group, "istio") && schema.Near(group, groups) == ""
	if near := schema.Near(kind, kinds); near != "" {
		hint, foreign = fmt.Sprintf("did you mean %q?", near), false
	}
	r.add(CodeKind, root.Nearest("kind"), "kind", fmt.Sprintf("the kind %q of %s is not known; %s", kind, apiVersion, hint))
	return gvk, false, foreign
}

// otherProject names whose objects a group has, if they are not Istio's.
func otherProject(group string, istios bool) string {
	switch {
	case istios:
		return ""
	case group == "v1" || group == "apps" || group == "batch" || group == "autoscaling" || group == "policy":
		return "Kubernetes"
	case group == "gateway.networking.k8s.io":
		return "the Gateway API of Kubernetes"
	case strings.HasSuffix(group, ".k8s.io"):
		return "Kubernetes"
	default:
		return ""
	}
}

// text reads a field that must be there, and text.
func text(root *tree.Node, name string, r *reporter) (string, bool) {
	n := root.Get(name)
	switch {
	case n == nil || n.Kind == tree.Null || n.Kind == tree.String && n.Text == "":
		r.add(CodeKind, root.Nearest(name), name, name+" is required")
		return "", false
	case n.Kind != tree.String:
		r.add(CodeKind, n.Pos, name, fmt.Sprintf("must be a string, not %s", n.Kind))
		return "", false
	}
	return n.Text, true
}
