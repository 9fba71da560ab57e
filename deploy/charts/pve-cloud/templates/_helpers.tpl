{{- define "pve-cloud.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* The longest suffix has 15 bytes, and names of 63 are possible. */}}
{{- define "pve-cloud.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 47 | trimSuffix "-" }}
{{- else if contains (include "pve-cloud.name" .) .Release.Name }}
{{- .Release.Name | trunc 47 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "pve-cloud.name" .) | trunc 47 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Of (list $ component). */}}
{{- define "pve-cloud.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "pve-cloud.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "pve-cloud.labels" -}}
{{- $ := index . 0 -}}
{{ include "pve-cloud.selector" . }}
app.kubernetes.io/part-of: pve-cloud
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Labels of a Pod. Those that select it can't be replaced. */}}
{{- define "pve-cloud.podLabels" -}}
{{- $ := index . 0 -}}
{{- $own := include "pve-cloud.selector" . | fromYaml -}}
{{ merge (dict) $own $.Values.podLabels | toYaml }}
{{- end }}

{{- /* Of (list $ image). */}}
{{- define "pve-cloud.image" -}}
{{- $ := index . 0 }}
{{- $image := get $.Values.images (index . 1) }}
{{- $name := printf "%s/%s" (default $.Values.images.registry $image.registry) $image.repository }}
{{- if $image.digest }}
{{- printf "%s@%s" $name $image.digest }}
{{- else }}
{{- printf "%s:%s" $name (coalesce $image.tag $.Values.images.tag $.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* What every container begins with: of (list $ image resources). */}}
{{- define "pve-cloud.container" -}}
{{- $ := index . 0 -}}
image: {{ include "pve-cloud.image" (list $ (index . 1)) }}
imagePullPolicy: {{ $.Values.images.pullPolicy }}
terminationMessagePolicy: File
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  privileged: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
{{- with index . 2 }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* /healthz says that the process is alive and knows nothing of Proxmox VE, so an outage there restarts no Pod. */}}
{{- define "pve-cloud.probes" -}}
livenessProbe:
  httpGet: { path: /healthz, port: {{ . }} }
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: {{ . }} }
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{- /* What the Pods of both Deployments have in common: of (list $ component). */}}
{{- define "pve-cloud.pod" -}}
{{- $ := index . 0 -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- with $.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  - key: CriticalAddonsOnly
    operator: Exists
  - key: node-role.kubernetes.io/control-plane
    operator: Exists
    effect: NoSchedule
{{- with $.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- else }}
{{- if gt (int (index . 2)) 1 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "pve-cloud.selector" (list $ (index . 1)) | nindent 8 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The mounted Secrets, and memory for what is made of them: of (list $ secretName). */}}
{{- define "pve-cloud.volumes" -}}
{{- $ := index . 0 -}}
- name: secret
  secret:
    secretName: {{ index . 1 }}
    defaultMode: 288 # 0440
# It is made by whoever makes the tenant's control plane, perhaps after this Pod.
- name: kubeconfig-secret
  secret:
    secretName: {{ $.Values.tenant.kubeconfigSecret.name }}
    defaultMode: 288 # 0440
    optional: true
    items:
      - key: {{ $.Values.tenant.kubeconfigSecret.key }}
        path: {{ $.Values.tenant.kubeconfigSecret.key }}
- name: config
  emptyDir: { medium: Memory, sizeLimit: 4Mi }
- name: kubeconfig
  emptyDir: { medium: Memory, sizeLimit: 4Mi }
{{- end }}

{{- /* Arguments of pve-credentials: of (list $ use accounts), accounts being a map of file name to ServiceAccount. */}}
{{- define "pve-cloud.credentialsArgs" -}}
{{- $ := index . 0 -}}
- --use={{ index . 1 }}
- --secret-dir=/secret
- --config-dir=/run/pve-cloud/config/files
- --kubeconfig-source=/kubeconfig-secret/{{ $.Values.tenant.kubeconfigSecret.key }}
- --kubeconfig-dir=/run/pve-cloud/kubeconfig/files
{{- range $name, $account := index . 2 }}
- --impersonate={{ $name }}=system:serviceaccount:{{ $.Values.tenant.namespace }}:{{ $account }}
{{- end }}
{{- with $.Values.policy.provider }}
- --expect-provider={{ . }}
{{- end }}
{{- range $.Values.policy.regions }}
- --expect-region={{ . }}
{{- end }}
- --wait={{ $.Values.credentials.wait }}
- --log-format={{ $.Values.logFormat }}
{{- end }}

{{- define "pve-cloud.credentialsMounts" -}}
- { name: secret, mountPath: /secret, readOnly: true }
- { name: kubeconfig-secret, mountPath: /kubeconfig-secret, readOnly: true }
- { name: config, mountPath: /run/pve-cloud/config }
- { name: kubeconfig, mountPath: /run/pve-cloud/kubeconfig }
{{- end }}

{{- /* Makes the files before the program starts. */}}
{{- define "pve-cloud.initContainer" -}}
{{- $ := index . 0 -}}
- name: init-credentials
  {{- include "pve-cloud.container" (list $ "credentials" $.Values.credentials.resources) | nindent 2 }}
  args:
    {{- include "pve-cloud.credentialsArgs" . | nindent 4 }}
  volumeMounts:
    {{- include "pve-cloud.credentialsMounts" $ | nindent 4 }}
{{- end }}

{{- /* Follows both Secrets, beside the program: of (list $ use accounts port). */}}
{{- define "pve-cloud.watchContainer" -}}
{{- $ := index . 0 -}}
- name: credentials
  {{- include "pve-cloud.container" (list $ "credentials" $.Values.credentials.resources) | nindent 2 }}
  args:
    {{- include "pve-cloud.credentialsArgs" . | nindent 4 }}
    - --watch
    - --poll-period={{ $.Values.credentials.pollPeriod }}
    - --admin-address={{ $.Values.admin.host }}:{{ index . 3 }}
  ports:
    - { name: credentials, containerPort: {{ index . 3 }} }
  livenessProbe:
    httpGet: { path: /healthz, port: credentials }
    periodSeconds: 20
    timeoutSeconds: 5
    failureThreshold: 6
  volumeMounts:
    {{- include "pve-cloud.credentialsMounts" $ | nindent 4 }}
{{- end }}

{{- /* A token for the management API, for a program that needs one, and for no other container of its Pod. */}}
{{- define "pve-cloud.tokenVolume" -}}
- name: management-token
  projected:
    defaultMode: 288 # 0440
    sources:
      - serviceAccountToken: { path: token, expirationSeconds: 3607 }
      - configMap:
          name: kube-root-ca.crt
          items: [{ key: ca.crt, path: ca.crt }]
      - downwardAPI:
          items: [{ path: namespace, fieldRef: { apiVersion: v1, fieldPath: metadata.namespace } }]
{{- end }}

{{- define "pve-cloud.tokenMount" -}}
- { name: management-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true }
{{- end }}

{{- define "pve-cloud.strategy" -}}
{{- if gt (int .) 1 -}}
type: RollingUpdate
rollingUpdate: { maxSurge: 1, maxUnavailable: 0 }
{{- else -}}
# One at a time: two would write at the same disks.
type: Recreate
{{- end }}
{{- end }}
