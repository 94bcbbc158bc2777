(** * Rule sets

    The rules of a set are tried in order: the match is that of the first rule that matches, with its
    first answer.  The patterns of a set compile to one program, in which consecutive rules share the
    operator tests that they begin with.  The program gives the answers of all rules, rule by rule, so
    its first answer is the match of the set. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Enumeration Termination Compile.

Section RuleSet.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** The specification *)

(** The answers of the rules, numbered from [k] on, one rule after the other. *)
Fixpoint in_order (k : nat) (os : list (list (store T))) : list (nat * store T) :=
  match os with
  | [] => []
  | o :: os => map (pair k) o ++ in_order (S k) os
  end.

(** The first rule that has an answer, with its first answer. *)
Fixpoint first_rule (k : nat) (os : list (list (store T))) : option (nat * store T) :=
  match os with
  | [] => None
  | [] :: os => first_rule (S k) os
  | (σ :: _) :: _ => Some (k, σ)
  end.

Lemma in_order_first os : forall k, hd_error (in_order k os) = first_rule k os.
Proof. induction os as [| [| σ o] os IH]; intros k; simpl; auto. Qed.

Lemma no_answers p (t : T) θ : wf p = true -> init p t ⇓ [] -> ~ [] ⊢ p @ θ ≈ t.
Proof. intros W H M. destruct (answers_complete p t [] θ W H M) as (σ & [] & _). Qed.

(** The rule that is chosen matches, and no well-formed rule before it does. *)
Theorem first_rule_sound ps (t : T) os :
  Forall2 (fun p o => init p t ⇓ o) ps os ->
  forall k r σ, first_rule k os = Some (r, σ) ->
  exists r' p, r = k + r' /\ nth_error ps r' = Some p /\ [] ⊢ p @ theta σ ≈ t /\
    forall q p' θ, q < r' -> nth_error ps q = Some p' -> wf p' = true -> ~ [] ⊢ p' @ θ ≈ t.
Proof.
  induction 1 as [| p o ps os H _ IH]; intros k r σ E; simpl in E; [discriminate |].
  destruct o as [| σ' o].
  - destruct (IH _ _ _ E) as (r' & p1 & -> & N & M & Before). exists (S r'), p1.
    repeat split; auto; [lia |]. intros [| q] p' θ L Nq W.
    + injection Nq as <-. now apply no_answers.
    + apply (Before q); auto. lia.
  - injection E as <- <-. exists 0, p. repeat split; auto; [| lia].
    eapply answers_sound; [exact H | now left | apply extends_refl].
Qed.

(** If none is chosen, no well-formed rule matches. *)
Theorem first_rule_complete ps (t : T) os :
  Forall2 (fun p o => init p t ⇓ o) ps os -> forall k, first_rule k os = None ->
  forall p θ, In p ps -> wf p = true -> ~ [] ⊢ p @ θ ≈ t.
Proof.
  induction 1 as [| p o ps os H _ IH]; intros k E p' θ I W; simpl in E; [destruct I |].
  destruct o; [| discriminate]. destruct I as [<- | I]; [now apply no_answers | eauto].
Qed.

(** ** Programs *)

Inductive program : Type :=
| Fail
| Accept (rule : nat)
| Instr (i : instr) (P : program)
| Or (P Q : program).

(** The code of one rule. *)
Definition straight (c : code) (r : nat) : program := fold_right Instr (Accept r) c.

(** Add a rule behind those of a program, under the operator tests that it shares with the last. *)
Fixpoint add (c : code) (r : nat) (P : program) : program :=
  match P with
  | Fail => straight c r
  | Accept _ => Or P (straight c r)
  | Or P Q => Or P (add c r Q)
  | Instr (IOp f n) P' =>
      match c with
      | IOp g m :: c' =>
          if Nat.eqb f g && Nat.eqb n m then Instr (IOp f n) (add c' r P') else Or P (straight c r)
      | _ => Or P (straight c r)
      end
  | Instr _ _ => Or P (straight c r)
  end.

Fixpoint add_all (k : nat) (ps : list pattern) (P : program) : program :=
  match ps with
  | [] => P
  | p :: ps => add_all (S k) ps (add (compile p) k P)
  end.

Definition compile_set (ps : list pattern) : program := add_all 0 ps Fail.

(** ** Running code to its end *)

(** [ends st vs]: the configurations with no code left to which [st] leads, in order. *)
Inductive ends : list vm_config -> list (vm_config (T := T)) -> Prop :=
| ends_nil : ends [] []
| ends_done σ K F stk vs : ends stk vs -> ends (VM σ K F [] :: stk) (VM σ K F [] :: vs)
| ends_step σ K F i c stk vs :
    ends (vm_expand (VM σ K F (i :: c)) ++ stk) vs -> ends (VM σ K F (i :: c) :: stk) vs.

Lemma ends_deterministic st vs : ends st vs -> forall vs', ends st vs' -> vs = vs'.
Proof. induction 1; intros vs' H'; inversion H'; subst; auto. f_equal; auto. Qed.

Lemma ends_code st vs : ends st vs -> Forall (fun v => vm_code v = []) vs.
Proof. induction 1; auto. Qed.

(** The code after the code at hand. *)
Definition then_code (c : code) (v : vm_config (T := T)) : vm_config :=
  VM (vm_store v) (vm_subjects v) (vm_frames v) (vm_code v ++ c).

Lemma vm_expand_then (σ : store T) K F i c d :
  vm_expand (VM σ K F (i :: c ++ d)) = map (then_code d) (vm_expand (VM σ K F (i :: c))).
Proof.
  destruct F as [| [R ρ] F]; [reflexivity |]. unfold vm_expand, do_instr.
  destruct i; try destruct K as [| t K]; try destruct (dest t) as [g ts];
    repeat match goal with
    | |- context [match ?o with _ => _ end] => destruct o
    end; simpl; unfold then_code; simpl; rewrite <- ?app_assoc; reflexivity.
Qed.

(** The runs of two parts of a stack. *)
Lemma vm_run_split n : forall (X Y : list (vm_config (T := T))) o,
  vm_run n (X ++ Y) = Some o ->
  exists o1 o2 m, vm_run n X = Some o1 /\ vm_run m Y = Some o2 /\ o = o1 ++ o2 /\
    m <= n /\ (X <> [] -> m < n).
Proof.
  induction n as [| n IH]; intros X Y o E; [discriminate |].
  destruct X as [| [σ K F [| i c]] X].
  - exists [], o, (S n). repeat split; auto. congruence.
  - simpl in E. destruct (vm_run n (X ++ Y)) as [o' |] eqn:E'; [| discriminate].
    injection E as <-. destruct (IH _ _ _ E') as (o1 & o2 & m & E1 & E2 & -> & L & _).
    exists (σ :: o1), o2, m. simpl. rewrite E1. repeat split; auto; lia.
  - cbn [vm_run app] in E. rewrite app_assoc in E.
    destruct (IH _ _ _ E) as (o1 & o2 & m & E1 & E2 & -> & L & _).
    exists o1, o2, m. repeat split; auto; lia.
Qed.

(** A run of code and then more code: the answers of the rest, from each end of the first part. *)
Lemma vm_run_then c n : forall st o,
  vm_run n (map (then_code c) st) = Some o ->
  exists vs os, ends st vs /\ Forall2 (fun v o' => vm_answers [then_code c v] o') vs os /\
    o = concat os.
Proof.
  induction n as [n IH] using (well_founded_induction Wf_nat.lt_wf). intros st o E.
  destruct n as [| n]; [discriminate |]. destruct st as [| [σ K F [| i d]] st].
  - injection E as <-. exists [], []. repeat constructor.
  - change (vm_run (S n) ([then_code c (VM σ K F [])] ++ map (then_code c) st) = Some o) in E.
    destruct (vm_run_split _ _ _ _ E) as (o1 & o2 & m & E1 & E2 & -> & _ & L).
    destruct (IH m (L ltac:(discriminate)) st o2 E2) as (vs & os & H1 & H2 & ->).
    exists (VM σ K F [] :: vs), (o1 :: os). split; [now constructor |]. split; [| reflexivity].
    constructor; auto. eapply vm_run_sound; eauto.
  - assert (E' : vm_run n (map (then_code c) (vm_expand (VM σ K F (i :: d)) ++ st)) = Some o).
    { rewrite map_app, <- vm_expand_then. exact E. }
    destruct (IH n (Nat.lt_succ_diag_r n) _ _ E') as (vs & os & H1 & H2 & ->).
    exists vs, os. split; [now constructor | auto].
Qed.

(** ** What a program does *)

(** [performs v P o]: the program [P], from the configuration [v], gives the answers [o]. *)
Inductive performs : vm_config -> program -> list (nat * store T) -> Prop :=
| P_fail v : performs v Fail []
| P_accept v r : performs v (Accept r) [(r, vm_store v)]
| P_instr v i P vs os :
    ends [VM (vm_store v) (vm_subjects v) (vm_frames v) [i]] vs ->
    Forall2 (fun v' o => performs v' P o) vs os ->
    performs v (Instr i P) (concat os)
| P_or v P Q o o' : performs v P o -> performs v Q o' -> performs v (Or P Q) (o ++ o').

Lemma Forall2_deterministic {A B} (p : A -> B -> Prop) :
  (forall a b b', p a b -> p a b' -> b = b') ->
  forall l m m', Forall2 p l m -> Forall2 p l m' -> m = m'.
Proof.
  intros D l m m' H. revert m'. induction H; intros m' H'; inversion H'; subst; auto.
  f_equal; eauto.
Qed.

Theorem performs_deterministic P : forall v o o', performs v P o -> performs v P o' -> o = o'.
Proof.
  induction P as [| r | i P IH | P IHP Q IHQ]; intros v o o' H H';
    inversion H as [| | ? ? ? vs os E F | ? ? ? o1 o2 H1 H2]; subst;
    inversion H' as [| | ? ? ? vs' os' E' F' | ? ? ? o1' o2' H1' H2']; subst; auto.
  - rewrite (ends_deterministic _ _ E _ E') in F.
    f_equal. exact (Forall2_deterministic (fun v' o => performs v' P o) IH _ _ _ F F').
  - f_equal; eauto.
Qed.

(** A configuration with no code left. *)
Definition at_end (σ : store T) (K : list T) (F : list frame) : vm_config := VM σ K F [].

(** One rule by itself gives its answers. *)
Lemma straight_performs r c : forall σ K F o,
  vm_answers [VM σ K F c] o -> performs (at_end σ K F) (straight c r) (map (pair r) o).
Proof.
  induction c as [| i c IH]; intros σ K F o H.
  - inversion H as [| ? ? ? ? ? H' |]; subst. inversion H'; subst. constructor.
  - apply vm_run_complete in H as [n H].
    destruct (vm_run_then c n [VM σ K F [i]] o H) as (vs & os & HE & HF & ->).
    rewrite concat_map. apply (P_instr (at_end σ K F) i (straight c r) vs (map (map (pair r)) os) HE).
    pose proof (ends_code _ _ HE) as HC. clear HE H.
    induction HF as [| v o vs os Hv HF IHF]; simpl; constructor.
    + inversion HC as [| ? ? C ?]; subst. destruct v as [σ' K' F' d]. simpl in C. subst d.
      now apply IH.
    + apply IHF. now inversion HC.
Qed.

(** An operator test has at most one end. *)
Lemma op_ends (σ : store T) K F f n vs :
  ends [VM σ K F [IOp f n]] vs -> vs = [] \/ exists σ' K' F', vs = [at_end σ' K' F'].
Proof.
  assert (One : forall o vs, ends (match o with Some v => [v] | None => [] end ++ []) vs ->
    match o with Some v => vm_code v = [] | None => True end ->
    vs = [] \/ exists σ' K' F', vs = [at_end σ' K' F']).
  { intros [[σ' K' F' c] |] vs' H C; simpl in *; subst; inversion H; subst; auto.
    match goal with X : ends [] _ |- _ => inversion X; subst end. right.
    exists σ', K', F'. reflexivity. }
  intros H. inversion H; subst. clear H.
  match goal with X : ends _ _ |- _ => revert X end.
  destruct F as [| [R ρ] F]; [intros X; exact (One None vs X I) |].
  destruct K as [| t K]; [intros X; exact (One None vs X I) |]. simpl.
  destruct (dest t) as [g ts]. destruct (_ && _); intros X; [| exact (One None vs X I)].
  exact (One (Some (VM σ (ts ++ K) ((R, ρ) :: F) [])) vs X eq_refl).
Qed.

(** Adding a rule adds its answers, behind those that were there. *)
Lemma add_performs r P : forall c σ K F o o',
  performs (at_end σ K F) P o -> performs (at_end σ K F) (straight c r) o' ->
  performs (at_end σ K F) (add c r P) (o ++ o').
Proof.
  induction P as [| r' | i P IH | P _ Q IHQ]; intros c σ K F o o' H H'; simpl.
  - inversion H; subst. exact H'.
  - now constructor.
  - destruct i as [| f n | | | | | | | | | |]; try (now constructor).
    destruct c as [| [| g m | | | | | | | | | |] c]; try (now constructor).
    destruct (Nat.eqb f g && Nat.eqb n m) eqn:Q; [| now constructor].
    apply andb_prop in Q as [Q1 Q2]. apply Nat.eqb_eq in Q1, Q2. subst g m.
    inversion H as [| | ? ? ? vs os E HF |]; subst.
    inversion H' as [| | ? ? ? vs' os' E' HF' |]; subst.
    rewrite (ends_deterministic _ _ E' _ E) in HF'. clear E' H H'.
    destruct (op_ends _ _ _ _ _ _ E) as [-> | (σ1 & K1 & F1 & ->)].
    + inversion HF; subst. inversion HF'; subst. now apply (P_instr _ _ _ [] []).
    + inversion HF as [| ? o1 ? ? H1 HN]; subst. inversion HN; subst.
      inversion HF' as [| ? o2 ? ? H2 HN']; subst. inversion HN'; subst. simpl.
      rewrite !app_nil_r, <- (app_nil_r (o1 ++ o2)).
      apply (P_instr _ _ _ [at_end σ1 K1 F1] [o1 ++ o2]); auto.
  - inversion H as [| | | ? ? ? o1 o2 H1 H2]; subst. rewrite <- app_assoc.
    constructor; auto.
Qed.

(** ** The program of a set gives the answers of its rules, in order *)

(** Where a program begins: an empty store, and the term as the only subject. *)
Definition program_init (t : T) : vm_config := at_end empty [t] [([], ρ0)].

Lemma add_all_performs ps t : forall os k P o,
  Forall2 (fun p o => init p t ⇓ o) ps os ->
  performs (program_init t) P o ->
  performs (program_init t) (add_all k ps P) (o ++ in_order k os).
Proof.
  induction ps as [| p ps IH]; intros os k P o H HP; inversion H; subst; simpl.
  - now rewrite app_nil_r.
  - rewrite app_assoc. apply IH; auto. apply add_performs; auto. apply straight_performs.
    now apply compile_answers.
Qed.

Theorem compile_set_answers ps t os :
  Forall2 (fun p o => init p t ⇓ o) ps os ->
  performs (program_init t) (compile_set ps) (in_order 0 os).
Proof. intros H. apply (add_all_performs ps t os 0 Fail []); auto. constructor. Qed.

(** ** Running programs *)

Fixpoint run_ends (n : nat) (st : list vm_config) : option (list (vm_config (T := T))) :=
  match n with
  | 0 => None
  | S n =>
      match st with
      | [] => Some []
      | VM σ K F [] :: stk => option_map (cons (VM σ K F [])) (run_ends n stk)
      | v :: stk => run_ends n (vm_expand v ++ stk)
      end
  end.

Fixpoint run_program (n : nat) (P : program) (v : vm_config) : option (list (nat * store T)) :=
  match P with
  | Fail => Some []
  | Accept r => Some [(r, vm_store v)]
  | Instr i P =>
      option_bind (run_ends n [VM (vm_store v) (vm_subjects v) (vm_frames v) [i]])
        (fun vs => option_map (@concat _) (sequence (map (run_program n P) vs)))
  | Or P Q =>
      option_bind (run_program n P v) (fun o => option_map (app o) (run_program n Q v))
  end.

Lemma run_ends_sound n : forall st vs, run_ends n st = Some vs -> ends st vs.
Proof.
  induction n as [| n IH]; intros st vs E; [discriminate |].
  destruct st as [| [σ K F [| i c]] st]; simpl in E.
  - injection E as <-. constructor.
  - destruct (run_ends n st) as [vs' |] eqn:E'; [| discriminate]. injection E as <-.
    constructor. auto.
  - constructor. auto.
Qed.

Theorem run_program_sound n P : forall v o, run_program n P v = Some o -> performs v P o.
Proof.
  induction P as [| r | i P IH | P IHP Q IHQ]; intros v o E; simpl in E.
  - injection E as <-. constructor.
  - injection E as <-. constructor.
  - destruct (run_ends n _) as [vs |] eqn:E1; [| discriminate]. simpl in E.
    destruct (sequence (map (run_program n P) vs)) as [os |] eqn:E2; [| discriminate].
    injection E as <-. econstructor; [eapply run_ends_sound, E1 |]. clear E1. revert os E2.
    induction vs as [| v' vs IHvs]; intros os E2; simpl in E2.
    + injection E2 as <-. constructor.
    + destruct (run_program n P v') as [o' |] eqn:E3; [| discriminate].
      destruct (sequence _) as [os' |] eqn:E4; [| discriminate]. injection E2 as <-.
      constructor; auto.
  - destruct (run_program n P v) as [o1 |] eqn:E1; [| discriminate]. simpl in E.
    destruct (run_program n Q v) as [o2 |] eqn:E2; [| discriminate]. injection E as <-.
    constructor; auto.
Qed.

(** Some fuel is enough, and so is more. *)

Lemma ends_run_ends st vs : ends st vs -> exists n, forall m, n <= m -> run_ends m st = Some vs.
Proof.
  induction 1 as [| σ K F stk vs _ [n IH] | σ K F i c stk vs _ [n IH]].
  - exists 1. intros [| m] L; [lia | reflexivity].
  - exists (S n). intros [| m] L; [lia |]. simpl. rewrite IH by lia. reflexivity.
  - exists (S n). intros [| m] L; [lia |]. apply IH. lia.
Qed.

Theorem performs_run P : forall v o,
  performs v P o -> exists n, forall m, n <= m -> run_program m P v = Some o.
Proof.
  induction P as [| r | i P IH | P IHP Q IHQ]; intros v o H;
    inversion H as [| | ? ? ? vs os E F | ? ? ? o1 o2 H1 H2]; subst.
  - exists 0. reflexivity.
  - exists 0. reflexivity.
  - destruct (ends_run_ends _ _ E) as [n1 E1].
    assert (exists n2, forall m, n2 <= m -> sequence (map (run_program m P) vs) = Some os) as [n2 E2].
    { clear E E1 H. induction F as [| v' o' vs os Hv _ [n IHF]]; [exists 0; reflexivity |].
      destruct (IH _ _ Hv) as [n' E']. exists (n + n'). intros m L. simpl.
      rewrite E', IHF by lia. reflexivity. }
    exists (n1 + n2). intros m L. simpl. rewrite E1 by lia. simpl. now rewrite E2 by lia.
  - destruct (IHP _ _ H1) as [n1 E1]. destruct (IHQ _ _ H2) as [n2 E2].
    exists (n1 + n2). intros m L. simpl. rewrite E1 by lia. simpl. now rewrite E2 by lia.
Qed.

(** The program of a set runs to its end where the rules do. *)
Theorem run_set ps t os :
  Forall2 (fun p o => init p t ⇓ o) ps os ->
  exists n, forall m, n <= m -> run_program m (compile_set ps) (program_init t) = Some (in_order 0 os).
Proof. intros H. now apply performs_run, compile_set_answers. Qed.

(** What a run of the program finds first is the match of the set. *)
Theorem run_set_first n ps t os o :
  Forall2 (fun p o => init p t ⇓ o) ps os ->
  run_program n (compile_set ps) (program_init t) = Some o ->
  hd_error o = first_rule 0 os.
Proof.
  intros H E. rewrite <- in_order_first. f_equal.
  eapply performs_deterministic; [eapply run_program_sound, E | now apply compile_set_answers].
Qed.
End RuleSet.

(** ** Guarded rules: the runs end *)

Theorem run_guarded_set {Δ : Domain} {T : Type} {Σ : Structure T} {Z : Sized T} ps (t : T) :
  (forall p, In p ps -> guarded p = true) ->
  exists os, Forall2 (fun p o => init p t ⇓ o) ps os /\
    exists n, forall m, n <= m ->
      run_program m (compile_set ps) (program_init t) = Some (in_order 0 os).
Proof.
  intros G. assert (exists os, Forall2 (fun p o => init p t ⇓ o) ps os) as [os H].
  { induction ps as [| p ps IH]; [now exists [] |].
    destruct IH as [os H]; [intros q I; apply G; now right |].
    destruct (termination p t (G p (or_introl eq_refl))) as [o E]. exists (o :: os). now constructor. }
  exists os. split; [exact H | now apply run_set].
Qed.
