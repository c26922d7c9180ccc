// Package clients runs client-go, unmodified, against the API server that KUBECONFIG names.
package clients

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	namespace = "clientgo"
	patience  = 30 * time.Second
	protobuf  = "application/vnd.kubernetes.protobuf"
)

// connect makes a client configuration; of Protobuf if asked for, and else of JSON.
func connect(t *testing.T, content string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatalf("KUBECONFIG: %v", err)
	}
	config.ContentType = content
	if content == protobuf {
		config.AcceptContentTypes = protobuf + ",application/json"
	}
	config.QPS = -1
	return config
}

func prepare(t *testing.T, clients kubernetes.Interface) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := clients.CoreV1().Namespaces().Create(context.Background(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func TestTypedClientInBothEncodings(t *testing.T) {
	for _, content := range []string{"application/json", protobuf} {
		t.Run(content, func(t *testing.T) {
			ctx := context.Background()
			clients := kubernetes.NewForConfigOrDie(connect(t, content))
			prepare(t, clients)
			maps := clients.CoreV1().ConfigMaps(namespace)
			made, err := maps.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "m-", Labels: map[string]string{"test": "typed"}},
				Data:       map[string]string{"a": "1"},
				BinaryData: map[string][]byte{"b": {0, 1, 255}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			made.Data["a"] = "2"
			changed, err := maps.Update(ctx, made, metav1.UpdateOptions{})
			if err != nil || changed.Data["a"] != "2" || changed.ResourceVersion == made.ResourceVersion {
				t.Fatalf("%v %v", changed, err)
			}
			made.Data["a"] = "3"
			if _, err = maps.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Fatalf("a stale update: %v", err)
			}
			patched, err := maps.Patch(ctx, made.Name, types.StrategicMergePatchType, []byte(`{"data":{"c":"4"}}`), metav1.PatchOptions{})
			if err != nil || patched.Data["c"] != "4" || len(patched.BinaryData["b"]) != 3 {
				t.Fatalf("%v %v", patched, err)
			}
			list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "test=typed", Limit: 500})
			if err != nil || len(list.Items) == 0 {
				t.Fatalf("%v %v", list, err)
			}
			if err = maps.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err = maps.Get(ctx, made.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Fatalf("a deleted object: %v", err)
			}
		})
	}
}

func TestSharedInformersFollowInBothEncodings(t *testing.T) {
	for _, content := range []string{"application/json", protobuf} {
		t.Run(content, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			clients := kubernetes.NewForConfigOrDie(connect(t, content))
			prepare(t, clients)
			maps := clients.CoreV1().ConfigMaps(namespace)
			name := fmt.Sprintf("followed-%d", time.Now().UnixNano())
			told := make(chan string, 100)
			factory := informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithNamespace(namespace))
			informer := factory.Core().V1().ConfigMaps()
			tell := func(what string, object interface{}) {
				if of, ok := object.(*corev1.ConfigMap); ok && of.Name == name {
					told <- what + of.Data["a"]
				}
			}
			_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc:    func(object interface{}) { tell("add ", object) },
				UpdateFunc: func(_, object interface{}) { tell("update ", object) },
				DeleteFunc: func(object interface{}) { tell("delete ", object) },
			})
			if err != nil {
				t.Fatal(err)
			}
			factory.Start(ctx.Done())
			factory.WaitForCacheSync(ctx.Done())
			made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "1"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			made.Data["a"] = "2"
			if _, err = maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err = maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, expected := range []string{"add 1", "update 2", "delete 2"} {
				select {
				case found := <-told:
					if found != expected {
						t.Fatalf("%q instead of %q", found, expected)
					}
				case <-ctx.Done():
					t.Fatalf("not told of %q", expected)
				}
			}
		})
	}
}

func TestApplyNamesManagersAndConflicts(t *testing.T) {
	ctx := context.Background()
	clients := kubernetes.NewForConfigOrDie(connect(t, "application/json"))
	prepare(t, clients)
	deployment := func(replicas int32) *appsapply.DeploymentApplyConfiguration {
		pod := coreapply.PodTemplateSpec().WithLabels(map[string]string{"app": "x"}).
			WithSpec(coreapply.PodSpec().WithContainers(coreapply.Container().WithName("c").WithImage("i")))
		return appsapply.Deployment("applied", namespace).WithSpec(appsapply.DeploymentSpec().WithReplicas(replicas).
			WithSelector(metaapply.LabelSelector().WithMatchLabels(map[string]string{"app": "x"})).WithTemplate(pod))
	}
	deployments := clients.AppsV1().Deployments(namespace)
	one, err := deployments.Apply(ctx, deployment(1), metav1.ApplyOptions{FieldManager: "one"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := deployments.Apply(ctx, deployment(1), metav1.ApplyOptions{FieldManager: "one"})
	if err != nil || again.ResourceVersion != one.ResourceVersion {
		t.Fatalf("an apply of no change: %v %v", again, err)
	}
	if _, err = deployments.Apply(ctx, deployment(2), metav1.ApplyOptions{FieldManager: "two"}); !apierrors.IsConflict(err) {
		t.Fatalf("a field of another manager: %v", err)
	}
	forced, err := deployments.Apply(ctx, deployment(2), metav1.ApplyOptions{FieldManager: "two", Force: true})
	if err != nil || *forced.Spec.Replicas != 2 {
		t.Fatalf("%v %v", forced, err)
	}
	scale, err := deployments.GetScale(ctx, "applied", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 2 {
		t.Fatalf("%v %v", scale, err)
	}
	if err = deployments.Delete(ctx, "applied", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestDiscoveryLeadsDynamicAndMetadataClientsToCustomResources(t *testing.T) {
	ctx := context.Background()
	config := connect(t, "application/json")
	clients := kubernetes.NewForConfigOrDie(config)
	prepare(t, clients)
	dynamics := dynamic.NewForConfigOrDie(config)
	definitions := dynamics.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	definition := &unstructured.Unstructured{Object: map[string]interface{}{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]interface{}{"name": "widgets.clients.example.com"},
		"spec": map[string]interface{}{
			"group": "clients.example.com", "scope": "Namespaced",
			"names": map[string]interface{}{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []interface{}{map[string]interface{}{"name": "v1", "served": true, "storage": true,
				"schema": map[string]interface{}{"openAPIV3Schema": map[string]interface{}{"type": "object",
					"x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}}
	if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(clients.Discovery()))
	kind := schema.GroupKind{Group: "clients.example.com", Kind: "Widget"}
	var mapping *meta.RESTMapping
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		mapper.Reset()
		found, err := mapper.RESTMapping(kind, "v1")
		mapping = found
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	widget := &unstructured.Unstructured{Object: map[string]interface{}{
		"apiVersion": "clients.example.com/v1", "kind": "Widget",
		"metadata": map[string]interface{}{"name": "w"}, "spec": map[string]interface{}{"size": int64(3)},
	}}
	made, err := dynamics.Resource(mapping.Resource).Namespace(namespace).Create(ctx, widget, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedInt64(made.Object, "spec", "size"); size != 3 {
		t.Fatalf("%v", made)
	}
	partial, err := metadata.NewForConfigOrDie(connect(t, protobuf)).Resource(mapping.Resource).Namespace(namespace).Get(ctx, "w", metav1.GetOptions{})
	if err != nil || partial.UID != made.GetUID() {
		t.Fatalf("%v %v", partial, err)
	}
	if err = definitions.Delete(ctx, "widgets.clients.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestOneOfTwoLeadersIsElectedAndTheOtherFollows(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	clients := kubernetes.NewForConfigOrDie(connect(t, protobuf))
	prepare(t, clients)
	leaders := make(chan string, 4)
	elect := func(ctx context.Context, identity string) {
		lock := &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "leader", Namespace: namespace},
			Client:     clients.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: lock, ReleaseOnCancel: true,
			LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { leaders <- identity },
				OnStoppedLeading: func() {},
			},
		})
	}
	first, stop := context.WithCancel(ctx)
	go elect(first, "a")
	if found := <-leaders; found != "a" {
		t.Fatalf("%q leads", found)
	}
	go elect(ctx, "b")
	stop()
	select {
	case found := <-leaders:
		if found != "b" {
			t.Fatalf("%q leads", found)
		}
	case <-ctx.Done():
		t.Fatal("nobody followed")
	}
}
